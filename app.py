"""The dashboard: choose a workload, a model and a fleet; run; read the verdict first.

The one idea: this file only lays out. The sidebar's inputs become a scenario, the command line simulates it in a
subprocess, and every page shows what is read from the answer.

    kvcast dashboard        (or: streamlit run app.py)
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module

import streamlit as st

from kvcast.jobs.runner import PREPARE, Runner
from kvcast.pages import shell

PAGES = ("Plan", "Workload", "Cache", "Compare", "Resilience", "Calibration", "Timeline", "Life")


@st.cache_resource
def prepare(_runner: Runner) -> None:
    """Begin the example's plan, once, with the server's first session."""
    from kvcast.pages import plan

    plan.prepare(_runner)


def main() -> None:
    st.set_page_config("kvcast", layout="wide")

    def draw(name: str) -> None:
        shell.heading(name)
        shell.status(page)
        import_module(f"kvcast.pages.{name.lower()}").show(page)

    pages = [
        st.Page(partial(draw, name), title=name, url_path=name.lower(), default=name == PAGES[0]) for name in PAGES
    ]
    chosen = st.navigation(pages, position="top")
    page = shell.begin()  # here, not in a page, so that the sidebar's widgets live through a change of pages
    if os.environ.get(PREPARE):
        prepare(page.runner)
    chosen.run()


main()
