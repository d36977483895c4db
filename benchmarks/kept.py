"""Results of a long benchmark in a file, a line each, so that a killed one goes on where it stopped.

>>> kept = Kept(Path("out/toy.jsonl")); kept("branch 8", upper, scenario)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Kept:
    """Values that JSON can hold, by key; the newest line of a key counts. path: None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.values = path, {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.endswith("}"):  # not one that was being written when the process was killed
                    row = json.loads(line)
                    self.values[row["key"]] = row["value"]

    def __call__(self, key: str, find: Callable[..., Any], *of: Any) -> Any:
        if key not in self.values:
            self.values[key] = find(*of)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "value": self.values[key]}) + "\n")
        return self.values[key]
