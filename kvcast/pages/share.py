"""What *Share or load* has on every page: the runs that the server was started with, a link, a command line, a
scenario file to load.

    with st.popover(LABEL):
        runs(); link_to("to these settings", params); command("the same card", "kvcast ask --use=chat")
        load("scenario.upload", loaded)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlencode, urlsplit

import streamlit as st

from kvcast.jobs import link, opened
from kvcast.pages.edit import inputs, settings
from kvcast.pages.edit.plain import plain
from workloads.errors import InputError

LABEL = "Share or load"


def runs() -> None:
    """Links to the runs that the server was started with, where there are any."""
    if found := opened.listed():
        st.markdown("**Runs** :gray[that this server was started with]")
        st.markdown("\n".join(f"- [{plain(name)}](/?{link.JOB}={key})" for name, key in found.items()))


def link_to(about: str, params: Mapping[str, str], why_not: str = "") -> None:
    """The link, or why there is none."""
    st.markdown(f"**Link** :gray[{about}; the browser's address is the same]")
    if why_not:
        st.caption(plain(why_not))
    else:
        st.code(f"{_address()}?{urlencode(params)}", language=None)


def _address() -> str:
    """The page's address as the browser writes it."""
    parts = urlsplit(st.context.url or "")
    return parts._replace(path=parts.path or "/", query="", fragment="").geturl()


def command(about: str, line: str) -> None:
    st.markdown(f"**Command line** :gray[{about}]")
    st.code(line, language="bash", wrap_lines=True)


def load(key: str, done: Callable[[str], None]) -> None:
    """A place for a scenario.toml: the other pages then say what it says. done is told what is wrong with it, or
    nothing."""

    def loaded() -> None:
        upload = st.session_state[key]
        if upload is None:
            return
        try:
            settings.adopt(link.scenario_in(upload.getvalue(), upload.name, inputs.policies()))
        except InputError as error:
            done(str(error))
        else:
            done("")

    st.file_uploader(
        "Load a scenario.toml",
        "toml",
        key=key,
        on_change=loaded,
        max_upload_size=1,
        help="its settings become the page's; it may not name files of the server or classes of your own",
    )
