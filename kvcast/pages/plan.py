"""The Plan page: the verdict on the run on show, and what it rests on.

    show(page)
"""
from __future__ import annotations

import streamlit as st

from kvcast.pages import results
from kvcast.pages.shell import Page


def show(page: Page) -> None:
    if page.run is None:
        return
    answer, assumed = st.tabs(["Answer", "Assumptions"])
    with answer:
        results.show(page.run)
        results.reproduce(page.run, page.shown_toml)
    with assumed:
        results.assumptions(page.run)
