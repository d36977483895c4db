"""The fields of the sidebar: each shows a key of the session, with the schema's text as its help.

>>> number(st, "Replicas", 1, 512, "replicas", help=hint(ClusterConfig, "replicas"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import streamlit as st


def about(cls: type, name: str) -> Mapping[str, Any]:
    """What the schema says of a key: help, limit, choices."""
    return next(f.metadata for f in fields(cls) if f.name == name)


def hint(cls: type, name: str) -> str:
    """The schema's help text of a key."""
    return str(about(cls, name)["help"])


def number(place: Any, label: str, least: float, most: float | None, key: str, **look: Any) -> Any:
    """A number field that says what the session holds. Its default is that too: a browser that has not drawn the field
    yet, when the page is drawn again, begins with the default and tells it. One with a placeholder may be empty."""
    if look.get("placeholder"):
        return optional(place, label, least, most, st.session_state[key], key, **look)
    return place.number_input(label, least, most, st.session_state[key], key=key, **look)


def optional(
    place: Any, label: str, least: float, most: float | None, value: float | None, key: str, **look: Any
) -> Any:
    """A number field that may be empty, and says this value. An emptied field tells its default, so that is none, and
    the value is told to the browser anew each time."""
    st.session_state[key] = value
    return place.number_input(label, least, most, None, key=key, **look)


def select(place: Any, label: str, options: Sequence[Any], key: str, **look: Any) -> Any:
    """A list that says what the session holds, as `number` does."""
    if st.session_state[key] not in options:
        st.session_state[key] = options[0]
    return place.selectbox(label, options, options.index(st.session_state[key]), key=key, **look)
