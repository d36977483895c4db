"""Containers of a compose file, a Kubernetes manifest or Helm values that start an engine.

The one idea: such files differ in where a container stands, not in what it is: a table with a command or arguments, an
image, an environment and GPUs. Every table is looked at; the replicas are those of the nearest table around it.

    >>> containers("services: {a: {image: vllm/vllm-openai, command: [--model, Qwen/Qwen3-8B]}}")[0].where
    'services.a'
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.planner.flag_names import VLLM
from kvcast.planner.starts import VLLM_IMAGE, Start, filled, in_shell, in_words
from workloads.errors import InputError

COMMANDS = ("entrypoint", "command", "modelCommand", "args")
REPLICAS = ("replicas", "replicaCount", "scale", "minReplicas")
GPUS = ("nvidia.com/gpu", "amd.com/gpu", "requestGPU", "gpu")
DEEPEST = 60
LONGEST = 2_000_000  #: characters of a text that is read
MARK = re.compile(
    r"^\s*(services|kind|containers|image|replicas|replicaCount|servingEngineSpec|modelSpec|apiVersion)\s*:"
)


def starts(text: str, folder: Path = Path()) -> list[Start]:
    """Every start of an engine in a text: a manifest's where it is one, else a shell's.

    folder: where its files of options lie."""
    if len(text) > LONGEST:
        raise InputError(f"--from-launch: {len(text):,} characters; expected a launch command or a manifest")
    found = containers(text, folder)
    return list(in_shell(text, folder)) if found is None else found


def containers(text: str, folder: Path = Path()) -> list[Start] | None:
    """The engines that a manifest starts; None where the text is none."""
    if not any(MARK.match(line) for line in text.splitlines()):
        return None
    found: list[Start] = []
    for document in documents(text):
        if isinstance(document, dict):
            found += _within(document, "", None, folder, set(), _artifact(document))
    return found


def documents(text: str) -> list[Any]:
    """Of YAML, each document. InputError where it is none, or cannot be read here."""
    try:
        import yaml
    except ImportError:
        raise InputError("--from-launch: a YAML file needs the package pyyaml, which is not installed") from None
    try:
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise InputError(f"--from-launch: not YAML{line} ({getattr(error, 'problem', None) or 'unreadable'})") from None


def _within(
    table: dict, path: str, replicas: int | None, folder: Path, seen: set[int], chart: Sequence[str] = ()
) -> Iterator[Start]:
    """The starts of a table and of those inside it, each looked at once whatever aliases it has.

    chart: words that llm-d's chart puts behind its `vllmServe`: model and layout, of the tables around."""
    if id(table) in seen or path.count(".") > DEEPEST or (table.get("create") is False and "containers" in table):
        return  # a chart's role that is switched off starts nothing
    seen.add(id(table))
    replicas = _replicas(table, replicas)
    chart = [*chart, *_layout(table)]
    own = list(_of_container(table, path, folder, chart))
    yield from (replace(one, replicas=one.replicas or replicas) for one in own)
    for name, value in table.items():
        if own and name in (*COMMANDS, "image"):
            continue
        for inner, where in _tables(value, f"{path}.{name}" if path else str(name)):
            yield from _within(inner, where, replicas, folder, seen, chart)


def _tables(value: Any, where: str) -> Iterator[tuple[dict, str]]:
    if isinstance(value, dict):
        yield value, where
    elif isinstance(value, list):
        for i, one in enumerate(value):
            if isinstance(one, dict):
                yield one, f"{where}.{one.get('name', i)}"


def _replicas(table: dict, around: int | None) -> int | None:
    deploy = table.get("deploy")
    found = {**table, **(deploy if isinstance(deploy, dict) else {})}
    counts = [found[key] for key in REPLICAS if _is_count(found.get(key))]
    return counts[-1] if counts else around


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _of_container(table: dict, path: str, folder: Path, chart: Sequence[str]) -> Iterator[Start]:
    """The start of one container, where it is an engine's."""
    if isinstance(table.get("vllmConfig"), dict) or "modelURL" in table:
        yield from _of_stack(table, path, folder)
        return
    if (model := _served(table)) is not None:
        own = ("--model_id=", "--model-id=", "--model_name=", "--model-name=")  # of KServe's server, not of vLLM
        words = [model, *(str(one) for one in table.get("args") or [] if not str(one).startswith(own))]
        yield Start(VLLM, words, _environment(table.get("env")), _gpus(table), None, path, folder)
        return
    env = _environment(table.get("environment", table.get("env")))
    words, image = _words(table, env, chart), _image(table.get("image"))
    if not words and isinstance(table.get("image"), dict):
        words = _words(table["image"], env, chart)
    if not words and not (image and VLLM_IMAGE.fullmatch(image)):
        return
    found = list(in_words(words, folder, env))
    if not found and image and VLLM_IMAGE.fullmatch(image):
        found = [Start(VLLM, words, folder=folder)]
    gpus = _gpus(table)
    for one in found:
        yield replace(one, env={**env, **one.env}, gpus=one.gpus or gpus, where=path, image=one.image or image)


def _words(table: dict, env: dict[str, str], chart: Sequence[str]) -> list[str]:
    """Command and arguments, each a list of words or, as compose has it, a line."""
    words: list[str] = []
    for key in COMMANDS:
        value = table.get(key)
        if isinstance(value, str):
            value = ["vllm", "serve", *chart] if value == "vllmServe" else _split(value)
        if isinstance(value, list):
            words += [filled(str(one).replace("$$", "$"), env) for one in value if not isinstance(one, dict | list)]
    return [word for word in words if word]


def _split(line: str) -> list[str]:
    """A line's words; one with a shell's own words stays whole, for a shell."""
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError:
        return []
    return ["sh", "-c", line] if {"&&", "||", ";", "|", ">"} & set(words) or "\n" in line.strip() else words


def _artifact(document: dict) -> list[str]:
    """The model of llm-d's values."""
    found = document.get("modelArtifacts")
    if not isinstance(found, dict):
        return []
    uri = str(found.get("uri", ""))
    return [str(found.get("name") or uri.removeprefix("hf://"))] if uri.startswith("hf://") or found.get("name") else []


def _layout(table: dict) -> list[str]:
    """Flags of the `parallelism` that llm-d's values give a role."""
    found = table.get("parallelism")
    named = {"tensor": "--tensor-parallel-size", "data": "--data-parallel-size", "pipeline": "--pipeline-parallel-size"}
    told = found if isinstance(found, dict) else {}
    return [word for key, flag in named.items() if _is_count(told.get(key)) for word in (flag, str(told[key]))]


def _image(value: Any) -> str:
    if isinstance(value, dict):
        name = "/".join(str(value[key]) for key in ("registry", "repository") if value.get(key))
        return f"{name}:{value['tag']}" if name and value.get("tag") else name
    return str(value) if isinstance(value, str) else ""


def _environment(value: Any) -> dict[str, str]:
    """A table, a list of `A=b`, or a list of {name, value}."""
    if isinstance(value, dict):
        return {str(name): str(one) for name, one in value.items() if isinstance(one, str | int | float)}
    found: dict[str, str] = {}
    for one in value if isinstance(value, list) else []:
        if isinstance(one, dict) and isinstance(one.get("value"), str | int | float):
            found[str(one.get("name"))] = str(one["value"])
        elif isinstance(one, str) and "=" in one:
            name, _, told = one.partition("=")
            found[name] = told
    return found


def _gpus(table: dict) -> int | None:
    """Of Kubernetes' limits or requests, or of compose's reserved devices."""
    resources = table.get("resources")
    deploy = table.get("deploy")
    if isinstance(deploy, dict) and isinstance(deploy.get("resources"), dict):
        resources = deploy["resources"]
    if not isinstance(resources, dict):
        return table[GPUS[2]] if _is_count(table.get(GPUS[2])) else None
    for kind in ("limits", "requests", "reservations"):
        asked = resources.get(kind)
        if not isinstance(asked, dict):
            continue
        for name in GPUS:
            if str(asked.get(name, "")).isdigit():
                return int(asked[name])
        for device in asked.get("devices") or []:
            if isinstance(device, dict):
                ids = device.get("device_ids")
                if isinstance(ids, list):  # compose splits none of them: ['0,1'] is meant as two
                    return len(",".join(map(str, ids)).split(","))
                return device["count"] if _is_count(device.get("count")) else None
    return None


def _served(table: dict) -> str | None:
    """The model of KServe's `model: {modelFormat, storageUri, args}` or of KubeAI's `{engine: VLLM, url, args}`; of
    KServe's own Hugging Face server it may be the argument `--model_id`."""
    form, engine = table.get("modelFormat"), str(table.get("engine", "")).lower()
    if isinstance(form, dict) and form.get("name") in ("huggingface", "vllm", "vLLM"):
        told = [str(one) for one in table.get("args") or [] if str(one).startswith(("--model_id=", "--model-id="))]
        where = told[-1].partition("=")[2] if told else str(table.get("storageUri", ""))
    elif engine == "vllm" and isinstance(table.get("url"), str):
        where = table["url"]
    else:
        return None
    return where.removeprefix("hf://") or None


def _of_stack(table: dict, path: str, folder: Path) -> Iterator[Start]:
    """A model of the vLLM production stack's values: flags in camel case, further ones as words."""
    words = [str(table["modelURL"])] if table.get("modelURL") else []
    config = table.get("vllmConfig")
    for name, value in (config if isinstance(config, dict) else {}).items():
        flag = re.sub(r"(?<!^)(?=[A-Z])", "-", str(name)).lower()
        if name == "extraArgs" and isinstance(value, list):
            words += [str(one) for one in value]
        elif isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        elif value is not None and value != "":
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    cache = table.get("lmcacheConfig")
    if isinstance(cache, dict) and cache.get("enabled", True):  # the chart starts the engine with this connector
        words += ["--kv-transfer-config", json.dumps({"kv_connector": "LMCacheConnectorV1", **cache})]
    gpus = table.get("requestGPU")
    yield Start(VLLM, words, _environment(table.get("env")), gpus if _is_count(gpus) else None, None, path, folder)
