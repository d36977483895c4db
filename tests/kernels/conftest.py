"""Worker results for the kernel tests: all cases of a session are computed together, on every core."""

import pytest

from tests.kernels import workers


def _ids(request: pytest.FixtureRequest, name: str) -> list[str]:
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return list(dict.fromkeys(p[name].id for p in params if name in p))


@pytest.fixture(scope="session")
def interpreted_results(request: pytest.FixtureRequest) -> dict[str, dict]:
    return workers.run("tests.kernels.interpret", _ids(request, "run"), {"TRITON_INTERPRET": "1"})


@pytest.fixture(scope="session")
def compiled_results(request: pytest.FixtureRequest) -> dict[str, dict]:
    return workers.run("tests.kernels.compile", _ids(request, "case"), {"TRITON_INTERPRET": "0"})
