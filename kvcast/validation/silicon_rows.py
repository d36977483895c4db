"""The closed-loop rows of aiconfigurator-core's sample of measurements (silicon_sample.csv), read and told apart.

The one idea: every line of the file ends as a row to answer or as a reason; nothing is dropped on the way.

    >>> read(find(None))[0].key
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from workloads.errors import InputError

FILE = "silicon_sample.csv"
PACKAGE = "aiconfigurator_core"
OWN_RUNS = "gap-analysis/data/"
"""In the source of NVIDIA's own runs; the others are InferenceX's."""
NODE = 8
"""GPUs that a replica of ours has at most."""
DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b")
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")
NEEDED = (
    *("id", "silicon_data_source", "backend", "model_path", "system", "precision", "mode", "isl", "osl"),
    *("gemm_quant_mode", "batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"),
    *("backend_version", *MEASURED),
)


@dataclass(frozen=True)
class Row:
    """One measurement: what ran, under which load, and its means."""

    id: str
    source: str  #: inferencex, nvidia or dynamo (NVIDIA's deployments): whose protocol
    model: str  #: as kvcast names it
    gpu: str
    backend: str
    precision: str
    gemm: str
    isl: int
    osl: int
    concurrency: int
    tp: int  #: GPUs of one attention rank
    dp: int  #: attention ranks
    ep: bool  #: whole experts on each GPU
    ttft_s: float
    tpot_s: float
    measured: str = ""  #: day, where said
    version: str = ""  #: of the backend, where said
    known: bool = True  #: whether its protocol is

    @property
    def held_back(self) -> bool:
        """Of the half, by the hash of its id, that is only scored: no residual of it is looked at."""
        return bool(sha256(self.id.encode()).digest()[0] % 2)

    @property
    def moe(self) -> bool:
        return self.model not in DENSE

    @property
    def key(self) -> str:
        return f"{self.model} {self.gpu} {self.backend}"

    @property
    def words(self) -> str:
        width = f"TP{self.tp}" + (f" DP{self.dp}" if self.dp > 1 else "") + (" EP" if self.ep else "")
        return f"{self.key} {self.precision or 'bf16'} {width} {self.isl}/{self.osl} x {self.concurrency}"


@dataclass(frozen=True)
class Unread:
    """A line of the file that is no row to answer, and why."""

    id: str
    why: str


def find(given: Path | None) -> Path:
    """The sample: a file, a folder with it, or the installed package's. Raises InputError."""
    if given is None:
        spec = find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                f"validate silicon: no package {PACKAGE}, expected aiconfigurator-core 0.12 installed, or its {FILE}"
                " with --data FILE"
            )
        given = Path(spec.submodule_search_locations[0])
    places = (given, given / FILE, given / "systems" / FILE, given / PACKAGE / "systems" / FILE)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(f"{given}: no {FILE} there, expected the sample in aiconfigurator-core 0.12")
    return found


def read(path: Path, models: Mapping[str, str]) -> tuple[list[Row], list[Unread]]:
    """(rows to answer, lines that are none with their reason), in the file's order. models: path -> kvcast's name."""
    try:
        return _read(path, models)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: no table of text ({error}), expected {FILE} of aiconfigurator-core 0.12") from None


def _read(path: Path, models: Mapping[str, str]) -> tuple[list[Row], list[Unread]]:
    rows: list[Row] = []
    unread: list[Unread] = []
    seen: dict[tuple[str, ...], str] = {}
    with path.open(newline="", encoding="utf-8") as f:
        reader = csv.DictReader(f)
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: no column {', '.join(missing)}, expected {FILE} of aiconfigurator-core 0.12")
        for number, line in enumerate(reader, 2):
            if None in line or None in line.values():
                raise InputError(f"{path}, row {number}: {len(reader.fieldnames or ())} fields expected")
            why = _unanswerable(line, models)
            same = (models.get(line["model_path"], ""), line["system"], *(_digits(line[name]) for name in MEASURED))
            if not why and same in seen:
                why = "the same measurement again"
            if why:
                unread.append(Unread(line["id"], why))
                continue
            seen[same] = line["id"]
            try:
                rows.append(_row(line, models))
            except ValueError as error:
                raise InputError(f"{path}, row {number}: {error}") from None
    return rows, unread


def _unanswerable(line: Mapping[str, str], models: Mapping[str, str]) -> str:
    """Why a line is no row of one replica under a closed loop; "" where it is one."""
    if line["mode"] != "agg":
        return "prefill and decode on different replicas"
    if line["model_path"] not in models:
        return f"no model {line['model_path']} here"
    if line["pp_size"] not in ("", "1"):
        return "a pipeline"
    tp, dp, _ = layout(line)
    return f"more than {NODE} GPUs" if tp * dp > NODE else ""


def _row(line: Mapping[str, str], models: Mapping[str, str]) -> Row:
    tp, dp, ep = layout(line)
    told = line["silicon_data_source"]
    source = "inferencex" if OWN_RUNS not in told else "dynamo" if "gtl_job_id" in told else "nvidia"
    total = re.search(r"silicon_concurrency=(\d+)", told)
    concurrency = int(total[1]) if total else _count(line, "batch_size") * dp
    if source == "dynamo" and total:  # of a whole deployment; its batch is a GPU's
        concurrency = _count(line, "batch_size") * tp * dp
    return Row(
        id=line["id"],
        source=source,
        model=models[line["model_path"]],
        gpu=line["system"].removesuffix("_sxm"),
        backend=line["backend"],
        precision=line["precision"],
        gemm=line["gemm_quant_mode"],
        isl=_count(line, "isl"),
        osl=_count(line, "osl"),
        concurrency=concurrency,
        tp=tp,
        dp=dp,
        ep=ep,
        ttft_s=_ms(line, "silicon_ttft_ms"),
        tpot_s=_ms(line, "silicon_tpot_ms"),
        measured=day[1] if (day := re.search(r"measured=(\d{4}-\d\d-\d\d)", told)) else "",
        version=line["backend_version"],
    )


def layout(line: Mapping[str, str]) -> tuple[int, int, bool]:
    """(GPUs of an attention rank, ranks, whether experts are whole).

    InferenceX's exports multiply one width into another (the same measurement stands as TP4 EP4 in one and as TP16 EP4
    in the next): tp = 16, ep = 4 is TP4; dp = 16, ep = 4 are 4 ranks; tp = dp = 4, ep = 16 are 4 ranks on 4 GPUs.
    NVIDIA's rows leave dp empty: it is what the experts' GPUs (moe_tp x moe_ep) are more than tp."""
    tp, dp, moe_tp, ep = (_width(line, n) for n in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"))
    if not line["attention_dp_size"]:
        dp = max(moe_tp * ep // tp, 1)
    elif ep > 1 and tp == ep * ep:
        tp = ep
    elif ep > 1 and dp == ep * ep:
        dp = ep
    elif tp == dp > 1 and ep == tp * dp:
        tp = 1
    return tp, dp, ep > 1


def _width(line: Mapping[str, str], name: str) -> int:
    return max(int(line[name]), 1) if line[name].isdigit() else 1


def _count(line: Mapping[str, str], name: str) -> int:
    if not line[name].isdigit() or not int(line[name]):
        raise ValueError(f"{name} = {line[name]!r}: expected a whole number of 1 or more")
    return int(line[name])


def _digits(value: str) -> str:
    """To ten digits: exports of one measurement differ in the last of theirs."""
    try:
        return f"{float(value):.10g}"
    except ValueError:
        return value


def _ms(line: Mapping[str, str], name: str) -> float:
    """Milliseconds as seconds."""
    try:
        value = float(line[name])
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise ValueError(f"{name} = {line[name]!r}: expected milliseconds above 0")
    return value / 1e3
