"""The Workload page: the mix as tables, or the trace that was uploaded.

    show(page)
"""
from __future__ import annotations

from dataclasses import replace

import streamlit as st

from kvcast.pages import inputs, mix
from kvcast.pages.shell import Page
from workloads.config import WorkloadConfig
from workloads.errors import InputError


def show(page: Page) -> None:
    if st.session_state["workload"] == inputs.TRACE:
        _trace(page)
        return
    config: WorkloadConfig = st.session_state["workload.mix"]
    st.dataframe(mix.class_rows(config), hide_index=True)
    st.dataframe(mix.layer_rows(config), hide_index=True)


def _trace(page: Page) -> None:
    upload = st.file_uploader("Trace file", key="trace")
    if upload is not None:
        try:
            path = page.runner.keep_upload(upload.name, upload.getvalue())
            page.runner.describe(path)
        except InputError as error:
            st.session_state["workload.problem"] = str(error)
            return
        st.session_state["workload.trace"] = str(path)
        st.session_state["base"] = replace(st.session_state["base"], workload=WorkloadConfig())
