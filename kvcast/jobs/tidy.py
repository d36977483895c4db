"""What a server forgets: jobs and uploads, by number, age and size.

The one idea: the newest stay. A job in progress stays, and an upload that a job which stays was asked with; only files
that the runner named are touched.

    >>> tidy(Path("runs/dashboard"), running={"4f0c..."})
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection
from pathlib import Path

KEEP_JOBS = 300
KEEP_DAYS = 30
KEEP_BYTES = 20 << 30
"""Of jobs together, and of uploads together."""
FRESH_S = 3600.0
"""An upload is nobody's job yet while its reader still chooses."""
KEY = re.compile(r"[0-9a-f]{24}")
UPLOAD = re.compile(rf"uploads/({KEY.pattern})/")


def tidy(root: Path, running: Collection[str] = (), now_s: float | None = None) -> list[str]:
    """Remove the oldest jobs beyond KEEP_JOBS, KEEP_DAYS or KEEP_BYTES, then the uploads that are nobody's; the keys of
    the jobs that are gone."""
    now_s = time.time() if now_s is None else now_s
    jobs = {file.stem: file for file in root.glob("*.toml") if KEY.fullmatch(file.stem)}
    ages = {key: now_s - max(map(_written_s, _files(root, key))) for key in jobs}
    gone, size = [], 0
    for count, key in enumerate(sorted(jobs, key=lambda key: (key not in running, ages[key])), 1):
        size += sum(_bytes(path) for path in _files(root, key))
        too_many = count > KEEP_JOBS or ages[key] > KEEP_DAYS * 86_400 or size > KEEP_BYTES
        if too_many and key not in running:
            gone.append(key)
    used = {found for key, file in jobs.items() if key not in gone for found in UPLOAD.findall(file.read_text("utf-8"))}
    for key in gone:
        for path in _files(root, key):
            _remove(path)
    _tidy_uploads(root / "uploads", used, now_s)
    return gone


def _tidy_uploads(folder: Path, used: Collection[str], now_s: float) -> None:
    uploads = [path for path in folder.glob("*") if KEY.fullmatch(path.name)]
    size = 0
    for path in sorted(uploads, key=_written_s, reverse=True):
        age_s = now_s - _written_s(path)
        size += _bytes(path)
        if path.name not in used and age_s > FRESH_S and (age_s > KEEP_DAYS * 86_400 or size > KEEP_BYTES):
            _remove(path)


def _files(root: Path, key: str) -> list[Path]:
    """A job's folder and the files beside it."""
    return [path for path in (root / key, *root.glob(f"{key}.*")) if path.exists()]


def _written_s(path: Path) -> float:
    """When a file was last written, or a folder's newest file."""
    inside = [inner.stat().st_mtime for inner in path.iterdir()] if path.is_dir() else []
    return max(inside, default=path.stat().st_mtime)


def _bytes(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
