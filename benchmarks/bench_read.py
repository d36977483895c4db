"""How long reading a trace of many rows takes, and how much memory: CPU seconds and peak MB, by shape of the file.

Each file is made, then read in a process of its own, so that the peak is the reading's.

    python benchmarks/bench_read.py                      # 1,000,000 rows of every shape
    python benchmarks/bench_read.py --rows 100000 --shape mooncake,table.csv
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def mooncake(i: int) -> Row:
    """A prompt of 20 blocks, 12 of them shared."""
    ids = [*range(12), *range(12 + 8 * i, 20 + 8 * i)]
    return {"timestamp": i * 20, "input_length": 10_000, "output_length": 100 + i % 400, "hash_ids": ids}


def plain(i: int) -> Row:
    return {"timestamp": i * 20, "input_length": 1000 + i % 4000, "output_length": 100 + i % 400}


def nested(i: int) -> Row:
    seconds = f"{i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02}.{i % 1000:03}"
    usage = {"prompt_tokens": 1000 + i % 4000, "completion_tokens": 100 + i % 400, "total_tokens": 5000}
    return {"ts": f"2026-06-{1 + i // 86400:02}T{seconds}+00:00", "model": f"m{i % 3}", "usage": usage, "id": f"r{i}"}


def _lines(rows: Iterator[Row], path: Path) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _gzip(rows: Iterator[Row], path: Path) -> None:
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _array(rows: Iterator[Row], path: Path) -> None:
    with path.open("w") as file:
        file.write("[")
        file.writelines((",\n" if i else "") + json.dumps(row) for i, row in enumerate(rows))
        file.write("]")


def _csv(rows: Iterator[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for i, row in enumerate(rows):
            flat = {**row, **row.pop("usage", {})}
            flat.pop("usage", None)
            if not i:
                writer.writerow(flat)
            writer.writerow(flat.values())


def _parquet(rows: Iterator[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path)


SHAPES: dict[str, tuple[Callable[[int], Row], Callable[[Iterator[Row], Path], None]]] = {
    "mooncake": (mooncake, _lines),
    "mooncake without ids": (plain, _lines),
    "mooncake.gz": (mooncake, _gzip),
    "table.jsonl": (nested, _lines),
    "table.json": (nested, _array),
    "table.csv": (nested, _csv),
    "table.parquet": (nested, _parquet),
}

READ = """
import sys, resource, time
from workloads.readers import read
start = time.process_time()
workload = read(sys.argv[1])
print(len(workload), time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shape", default=",".join(SHAPES), help="some of them, separated by commas")
    args = parser.parse_args()
    print(f"{'shape':22} {'file MB':>8} {'rows':>10} {'CPU s':>7} {'peak MB':>8}")
    for name in args.shape.split(","):
        row, write = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            write(map(row, range(args.rows)), path)
            done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
            rows, seconds, peak = done.stdout.split()
            size = path.stat().st_size / 1e6
        print(f"{name:22} {size:8.0f} {int(rows):10,} {float(seconds):7.1f} {float(peak):8.0f}", flush=True)


if __name__ == "__main__":
    main()
