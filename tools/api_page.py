"""docs/api.md from the docstrings of what `kvcast` exports: python -m tools.api_page > docs/api.md"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import kvcast

HEAD = """# API

What `from kvcast import ...` gives, from its docstrings (`python -m tools.api_page > docs/api.md`). Keys of a scenario:
[scenario](scenario.md); numbers of a summary: [metrics](metrics.md).
"""


def main() -> None:
    print(page(), end="")


def page() -> str:
    return "\n".join([HEAD, *(line for name in kvcast.__all__ for line in _entry(name, getattr(kvcast, name)))])


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    yield f"```python\n{_signature(name, thing)}\n```"
    yield ""
    yield _told(thing)
    yield ""
    for method, of in _methods(thing):
        yield f"- `{method}{_plain(inspect.signature(of))}`: {_first(of)}"
    if any(_methods(thing)):
        yield ""


def _signature(name: str, thing: Any) -> str:
    where = thing.__module__
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"class {name}(Exception)  # {where}"
    try:
        lines = _plain(inspect.signature(thing))
    except (TypeError, ValueError):
        return f"{name}  # {where}"
    one = f"{'class ' if inspect.isclass(thing) else ''}{name}{lines}"
    if len(one) > 110:
        one = one.replace("(", "(\n    ", 1).replace(", ", ",\n    ")
    return f"# {where}\n{one}"


def _plain(signature: inspect.Signature) -> str:
    """Names and defaults; the types are in the source."""
    told = [
        p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name not in ("self",)
    ]
    return str(signature.replace(parameters=told, return_annotation=inspect.Signature.empty)).replace(
        "<factory>", "..."
    )


def _told(thing: Any) -> str:
    text = inspect.cleandoc(thing.__doc__ or "") if not isinstance(thing, str) else ""
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else text  # a dataclass without a docstring


def _first(thing: Any) -> str:
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())


def _methods(thing: Any) -> list[tuple[str, Any]]:
    if not inspect.isclass(thing):
        return []
    return [
        (name, of)
        for name, of in vars(thing).items()
        if inspect.isfunction(of) and not name.startswith("_") and of.__doc__
    ]


if __name__ == "__main__":
    main()
