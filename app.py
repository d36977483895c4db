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
from kvcast.pages import ask, shell

PAGES = ("Ask", "Plan", "Workload", "Cache", "Compare", "Resilience", "Calibration", "Timeline", "Life")


@st.cache_resource
def prepare(_runner: Runner) -> None:
    """Begin the example's plan, once, with the server's first session."""
    from kvcast.pages import plan

    plan.prepare(_runner)


def main() -> None:
    st.set_page_config("kvcast", layout="wide")

    def draw(name: str) -> None:
        shell.heading(name)
        if page is None:
            ask.show(pages, before)
            return
        shell.status(page)
        import_module(f"kvcast.pages.{name.lower()}").show(page)

    pages = {
        name: st.Page(partial(draw, name), title=name, url_path=name.lower(), default=name == PAGES[0])
        for name in PAGES
    }
    chosen = st.navigation([*pages.values()], position="top")
    if chosen == pages[PAGES[0]] and shell.is_of_settings(params := st.query_params.to_dict()):
        st.switch_page(pages["Plan"], query_params=params)  # a link to settings
    before, st.session_state["page"] = st.session_state.get("page", ""), chosen.title
    # begun here, not in a page, so that the sidebar's widgets live through a change of pages; the first has none
    page = None if chosen == pages[PAGES[0]] else shell.begin(before != chosen.title)
    if page is not None and os.environ.get(PREPARE):
        prepare(page.runner)
    chosen.run()


main()
