"""What the tests of the dashboard's pages share: a folder of runs, a session, and what a reader of the page sees."""

import os
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from kvcast.jobs import demo, runner

APP = Path(__file__).parent.parent.parent / "app.py"


@pytest.fixture(scope="session", autouse=True)
def same_code():
    """One version of the code for all tests, whatever is edited while they run: its hash names the jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "code_version", lambda: "under test")
        yield


@pytest.fixture(scope="session")
def example(tmp_path_factory, same_code):
    """A job folder with the bundled example's run, simulated once for all modules."""
    path = tmp_path_factory.mktemp("example")
    demo.prepare(runner.Runner(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory, example):
    """Where the dashboard keeps its jobs, for every test of a module; the example's run is there, as on a server."""
    path = tmp_path_factory.mktemp("dashboard")
    shutil.copytree(example, path, dirs_exist_ok=True)
    os.environ["KVCAST_RUNS"] = str(path)
    yield path
    del os.environ["KVCAST_RUNS"]


class Session:
    """A reader's session with the dashboard."""

    def __init__(self, page: str = "plan") -> None:
        self.at = AppTest.from_file(str(APP), default_timeout=60)
        self.at._page_hash = calc_hash(page)
        self.settle(self.at.run())

    def settle(self, at):
        """The page once the run it waits for has ended; a browser polls, a test waits."""
        if at.session_state.pending is not None:
            at.session_state.pending.wait()
            at.run()
        assert not at.exception
        self.at = at
        return self

    def go(self, page: str):
        """Choose a page of the navigation."""
        self.at._page_hash = calc_hash(page)
        return self.settle(self.at.run())

    def press(self, label: str):
        """Press the button of this label, and wait for the run that it starts."""
        next(b for b in self.at.button if b.label == label).click()
        return self.settle(self.at.run())

    def buttons(self):
        return [b.label for b in self.at.button]

    def numbers(self):
        return {m.label: m.value for m in self.at.metric}

    def words(self):
        """Everything a reader can see, without Markdown's escapes."""
        at = self.at
        kinds = (at.markdown, at.caption, at.text, at.success, at.error, at.warning, at.info, at.code, at.header)
        return "\n".join(str(element.value) for kind in kinds for element in kind).replace("\\", "")
