"""Launch commands of vLLM, SGLang and TensorRT-LLM, in a shell or a manifest, read into scenario keys.

The one idea: every flag ends up in exactly one of four lists: set (a scenario key), no effect (on timing and cache),
not modelled (it changes results and kvcast does not simulate it) or unknown. Nothing is dropped without being named.

    >>> read_command("vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --enforce-eager").sets
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrate.kv_groups import blocks_of
from kvcast import api
from kvcast.config import scenario_from_doc
from kvcast.planner.flag_layouts import settled
from kvcast.planner.flag_names import SGLANG, SWITCH, TRTLLM, VLLM, kind_of, kinds, no_effect
from kvcast.planner.flag_words import flags_of, with_file
from kvcast.planner.flags import KV_BYTES, NOT_MODELLED, READ, TOKENS
from kvcast.planner.manifests import starts
from kvcast.planner.starts import Start, devices
from kvcast.planner.trtllm_options import expanded
from kvcast.scenario.fitting import fitting_profile
from sim.engines import ENGINES
from workloads.errors import InputError


@dataclass
class Launch:
    """A launch command, read. sets: scenario keys as --set takes them, in the order of the command."""

    engine: str
    sets: list[str] = field(default_factory=list)
    no_effect: list[str] = field(default_factory=list)
    not_modelled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    logged_tokens: int = 0  #: KV tokens that a log prints; engine.kv_blocks among the sets is of one KV group
    kv_bytes: int = 0  #: of one GPU, where the command gives them; blocks once the model is known

    def as_document(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "set": self.sets,
            "no_effect": self.no_effect,
            "not_modelled": self.not_modelled,
            "unknown": self.unknown,
            "notes": self.notes,
        }

    def cautions(self) -> list[str]:
        told = (
            ("that kvcast does not simulate, results differ by what they do", self.not_modelled),
            ("that kvcast does not know, not taken over", self.unknown),
        )
        return [f"launch flags {what}: {', '.join(flags)}" for what, flags in told if flags]

    def fit(self, doc: dict, source: str) -> None:
        """Take a profile of the scenario's GPU that fits the command's model and width, and say how the log's KV cache
        compares.

        doc: the scenario's tables with this command's sets applied.
        """
        scenario = scenario_from_doc(doc, source)
        profile = fitting_profile(scenario)
        if profile is not None:
            self.sets.append(f"hardware.profile={profile}")
            self.notes.append(
                f"profile {profile} instead of {scenario.hardware.profile}, which is for another model or width"
            )
            scenario = replace(scenario, hardware=replace(scenario.hardware, profile=profile))
        logged, size = scenario.engine.kv_blocks, scenario.engine.block_size
        if self.kv_bytes and logged is None:
            self._take_bytes(scenario)
        if logged is not None:
            free = replace(scenario, engine=replace(scenario.engine, kv_blocks=None, max_model_len=None))
            try:
                resolved = api.resolve(free)
            except InputError:
                return
            ours = resolved.scenario.engine.kv_blocks or 0
            if self.logged_tokens and (groups := resolved.params.kv_groups):
                logged = blocks_of(groups, self.logged_tokens)
                self.sets = [one for one in self.sets if not one.startswith("engine.kv_blocks=")]
                self.sets.append(f"engine.kv_blocks={logged}")
            self.notes.append(
                f"KV blocks of {size} tokens: {logged:,} given, kvcast's own arithmetic says {ours:,}"
                f" ({100 * (ours / logged - 1):+.1f} %); those given are used"
            )

    def _take_bytes(self, scenario: Any) -> None:
        """--kv-cache-memory-bytes as blocks, by the model's own KV bytes."""
        memory = api.resolve(replace(scenario, engine=replace(scenario.engine, max_model_len=None))).memory
        given = replace(memory, overhead_gib=(memory.usable - memory.weights - self.kv_bytes) / 2**30)
        self.sets.append(f"engine.kv_blocks={given.blocks()}")
        self.notes.append(f"{self.kv_bytes:,} bytes of KV on each GPU are {given.blocks():,} blocks of this model")


# -- a command ---------------------------------------------------------------------------------------------------------


def read_command(command: str) -> Launch:
    """A `vllm serve ...`, `python -m sglang.launch_server ...` or `trtllm-serve ...` command line; a script, a compose
    file, a Kubernetes manifest or Helm values with one in it; or the name of a file with any of these.

    Raises InputError for anything else."""
    text, folder = _text(command)
    found = starts(text, folder)
    if not found:
        raise InputError(
            f"--from-launch {command.strip()[:60]!r}: expected 'vllm serve MODEL ...', 'python -m sglang.launch_server"
            " --model-path MODEL ...' or 'trtllm-serve MODEL ...', a script or a manifest with one of them, or its file"
        )
    launch = _read(found[0])
    if found[0].where:
        launch.notes.append(f"from {found[0].where}")
    if len(found) > 1:
        others = ", ".join(dict.fromkeys(one.where or one.engine for one in found[1:]))
        launch.notes.append(f"{len(found)} engines are started there: the first is taken, not {others}")
    return launch


def _text(command: str) -> tuple[str, Path]:
    """(the text, the folder that its files of options lie in)."""
    name = command.strip()
    path = Path(name) if name and "\n" not in name and len(name) < 1000 else None
    try:
        if path is None or not path.is_file():
            return command, Path()
        return path.read_text(encoding="utf-8-sig"), path.parent
    except (OSError, ValueError):
        raise InputError(f"--from-launch {name}: cannot be read as text; expected a script or a manifest") from None


OWN_BLOCK = {SGLANG: 1, TRTLLM: 32}
"""Tokens of a block where the engine's default is not kvcast's."""
SECRET = re.compile(r"--(admin-)?api-key|--hf-token|--ssl-keyfile-password|--watermark-config")
OFFLOADED = "--kv-offloading-size"
TIER = (
    "--kv-offloading-size {0}: a tier of that size is simulated once its link is known, such as"
    " cache.tiers = [{{name = 'host', capacity_gib = {0}, bandwidth_gb_per_s = 50}}] in the scenario"
)


def _read(start: Start) -> Launch:
    engine = start.engine
    notes: list[str] = []
    flags = flags_of(engine, start.words)
    if engine == TRTLLM:
        flags = expanded(flags, notes, start.folder)
    else:
        flags = with_file(engine, flags, notes, start.folder)
    launch = sorted_flags(engine, flags)
    launch.notes += notes
    sizes = [one.removeprefix(OFFLOADED).strip() for one in launch.not_modelled if one.startswith(OFFLOADED)]
    launch.notes += [TIER.format(size) for size in sizes if size]
    _take_environment(launch, start)
    launch.notes += other_release(engine, start.image)
    if engine == TRTLLM:
        launch.notes.append("TensorRT-LLM's rules are unverified: no recorded case of the engine checks them")
    return launch


RELEASE = {
    VLLM: ("vLLM", re.compile(r"(?:.*/)?vllm-openai[^/:@]*:v?(\d+\.\d+\.\d+).*")),
    SGLANG: ("SGLang", re.compile(r"(?:.*/)?sglang:v?(\d+\.\d+\.\d+).*")),
}
"""An engine's name and own image; the tag of another that has the engine in it is not the engine's."""


def other_release(engine: str, image: str) -> list[str]:
    """A note where the image has another release of the engine than the one whose rules are simulated."""
    if engine not in RELEASE:
        return []
    name, pattern = RELEASE[engine]
    found, ours = pattern.fullmatch(image), ENGINES[engine].version.partition("-")[2]
    if found is None or found[1] == ours:
        return []
    return [f"its image has {name} {found[1]}; simulated are the rules of {name} {ours}, which may differ"]


ENGINE_VARIABLE = re.compile(r"(VLLM|SGLANG|SGL|TRTLLM|TLLM|LMCACHE)_\w+")
HARMLESS = re.compile(
    r"\w*(LOG|TRACE|STATS|TRACK|PORT|HOST|API_KEY|CACHE_ROOT|CONFIG_ROOT|PLUGINS|MULTIPROC|RPC|USAGE|MODELSCOPE|TIMEOUT"
    r"|ALLOW_LONG|SLEEP|PROFILER|ALLOW_RUNTIME)\w*"
)
"""Variables of an engine that change neither times nor the cache."""


def _take_environment(launch: Launch, start: Start) -> None:
    """Replicas, GPUs and the engine's variables that stand beside the command."""
    for name, value in start.env.items():
        if ENGINE_VARIABLE.fullmatch(name):
            harmless = HARMLESS.fullmatch(name)
            (launch.no_effect if harmless else launch.not_modelled).append(name if harmless else f"{name}={value}")
    given = dict(one.split("=", 1) for one in launch.sets)
    if start.replicas is not None:
        count = start.replicas * int(given.get("cluster.replicas", 1))
        launch.sets = [one for one in launch.sets if not one.startswith("cluster.replicas=")]
        launch.sets.append(f"cluster.replicas={count}")
    has = start.gpus or devices(f"device={start.env.get('CUDA_VISIBLE_DEVICES', '')}")
    asks = _gpus(given)
    if has is not None and has != asks:
        launch.notes.append(f"its container has {has} GPUs, the engine uses {asks}")


def _gpus(given: Mapping[str, str]) -> int:
    """GPUs of the command's engines together."""
    sizes = ("tensor_parallel", "attention_dp", "pipeline_parallel")
    count = int(given.get("cluster.replicas", 1))
    for size in sizes:
        count *= int(given.get(f"hardware.{size}", 1))
    return count


def sorted_flags(engine: str, flags: Iterable[tuple[str, str | None]]) -> Launch:
    """Every flag in one of the four lists."""
    launch = Launch(engine, [f"engine.semantics={engine}"])
    if engine in OWN_BLOCK:
        launch.sets.append(f"engine.block_size={OWN_BLOCK[engine]}")  # a flag below replaces it
    for flag, value in flags:
        shown = flag if value is None or SECRET.fullmatch(flag) else f"{flag} {value}"
        reader, switch = READ[engine].get(flag), kind_of(engine, flag) == SWITCH
        if reader is not None and (value is not None or switch):
            try:
                found = reader((value or "true").lower() if switch else str(value))
                launch.sets += found
                if not found:
                    launch.no_effect.append(shown)
            except (ValueError, OverflowError, TypeError, AttributeError, OSError):
                (launch.unknown if "$" in shown else launch.not_modelled).append(shown)
        elif no_effect(flag):
            launch.no_effect.append(shown)
        elif flag.startswith("--no-") and (f"--{flag[5:]}" in kinds(engine) or f"--{flag[5:]}" in NOT_MODELLED):
            (launch.not_modelled if f"--{flag[5:]}" in ON_BY_DEFAULT else launch.no_effect).append(shown)
        elif flag.partition(".")[0] in kinds(engine) or flag in NOT_MODELLED:
            launch.not_modelled.append(shown)
        else:
            launch.unknown.append(shown)
    launch.sets, not_modelled = settled(engine, _last_of_each(launch.sets))
    launch.not_modelled += not_modelled
    _take_memory(launch)
    return launch


ON_BY_DEFAULT = frozenset({"--enable-chunked-prefill"})
"""What is not modelled is being without it."""


def _last_of_each(sets: Sequence[str]) -> list[str]:
    """What a command says twice counts the second time."""
    keys = [one.partition("=")[0] for one in sets]
    return [one for i, one in enumerate(sets) if keys[i] not in keys[i + 1 :] or keys[i] == "model.dtype"]


def _take_memory(launch: Launch) -> None:
    """What the precision and the KV memory are once all flags are known."""
    quantized = next((one for one in launch.sets if one.startswith("model.dtype=") and one[12:] not in WIDE), None)
    if quantized:  # --dtype is then what the activations are in
        others = [one for one in launch.sets if not one.startswith("model.dtype=") or one == quantized]
        launch.sets = [one for i, one in enumerate(others) if one not in others[:i]]
    page = next(
        (int(one.partition("=")[2]) for one in reversed(launch.sets) if one.startswith("engine.block_size=")), 16
    )
    sets = []
    for one in launch.sets:
        key, _, value = one.partition("=")
        if key == KV_BYTES:
            launch.kv_bytes = int(value)
            launch.notes.append("--kv-cache-memory-bytes: instead of a share of the GPU's memory")
        else:
            sets.append(f"engine.kv_blocks={int(value) // max(page, 1)}" if key == TOKENS else one)
    launch.sets = sets


WIDE = ("bf16", "fp16", "fp32")
