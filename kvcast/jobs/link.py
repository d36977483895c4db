"""What leaves the page and comes back: a link with the settings, a scenario file, the command line that says the same.

The one idea: a link is the demo scenario with `--set`-style changes, so it is read as strictly as a file is, and what
the page may not do (name files or code of the server) is refused in one place, `harmless`, whichever way it comes in.

    >>> query(scenario)
    {'workload.preset': 'rag', 'cluster.replicas': '4'}
    >>> scenario_of({"workload.preset": "rag", "cluster.replicas": "4"}, demo(), policies())
"""

from __future__ import annotations

import base64
import binascii
import json
import shlex
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcast.config import apply_overrides, literal, scenario_from_doc, shallow
from kvcast.jobs import allowed
from kvcast.scenario.toml import dumps, literal_of
from sim.scenario import Scenario
from workloads.errors import InputError

PACKED = "scenario"
"""Parameter of a link that holds a whole scenario, compressed: a mix of one's own has no short form."""
SEED = "seed"
JOB = "job"
"""Parameter that names the run on show, for whoever opens the link on the same server."""
LETTERS = "ABCDEF"
"""Names of variants that a page keeps."""
NONE = "none"
LINK_LIMIT = 6000
"""Characters; browsers and proxies take 8,000."""
FILE_LIMIT_BYTES = 256 << 10
WIDTHS = (1, 2, 4, 8, 16)
"""GPUs of a replica that a page offers on a roofline."""
NO_FILES = "a page reads no files of the server"
PROFILES = "a bundled profile, atlas:GPU or roofline:GPU"
Named = tuple[str, Any, Sequence[Any], str]
"""A key as a line names it, its value, those it may have, and what to expect in words."""


class _NoShortFormError(Exception):
    """A difference that has no short form."""


def query(scenario: Scenario, base: Scenario) -> dict[str, str]:
    """The parameters of a link to these settings: the keys that differ from the base's, or all of them compressed.

    Raises InputError when they do not fit, or name an uploaded trace or config.json, which a link cannot carry; a trace
    that the server was started with goes by its name.
    """
    uploaded = allowed.trace_name(scenario.workload.trace) is None
    scenario, base = allowed.by_name(scenario), allowed.by_name(base)
    for path, what in (
        (scenario.workload.trace if uploaded else None, "trace"),
        (scenario.workload.tokenizer, "tokenizer"),
        (scenario.model.config, "config.json"),
    ):
        if path:
            raise InputError(
                f"the settings name an uploaded {what}, which a link cannot carry: download scenario.toml and send it"
                f" with the {what}"
            )
    try:
        found = dict(_differences(_doc(scenario), _doc(base), ""))
    except _NoShortFormError:
        found = {PACKED: _packed(dumps(scenario))}
    if "hardware.gpu" in found:  # which takes the profile's place
        found.pop("hardware.profile", None)
    if sum(len(key) + len(value) + 2 for key, value in found.items()) > LINK_LIMIT:
        raise InputError(
            f"the mix does not fit in a link of {LINK_LIMIT:,} characters: download scenario.toml and send that"
        )
    return found


def packed_variants(named: Mapping[str, Scenario], base: Scenario) -> str:
    """Named variants as one parameter of a link. Raises InputError as `query` does."""
    found = _packed(json.dumps({name: query(scenario, base) for name, scenario in named.items()}))
    if len(found) > LINK_LIMIT:
        raise InputError(f"the variants do not fit in a link of {LINK_LIMIT:,} characters: download variants.toml")
    return found


def variants_of(packed: str, base: Scenario, policies: Sequence[str]) -> dict[str, Scenario]:
    """The variants that a link's parameter says. Raises InputError, as `scenario_of` does."""
    try:
        rows = json.loads(_unpacked(packed))
        named = {str(name): {str(key): str(value) for key, value in params.items()} for name, params in rows.items()}
    except (ValueError, AttributeError):
        raise InputError("link: the variants in it are cut short or changed, expected the whole link") from None
    if not set(named) <= set(LETTERS):
        raise InputError(f"link: variants {', '.join(named)[:60]!r}, expected names among {', '.join(LETTERS)}")
    return {name: scenario_of(params, base, policies) if params else base for name, params in named.items()}


def _packed(text: str) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def changes(scenario: Scenario, base: Scenario) -> list[tuple[str, str, str]]:
    """(key, what the base has, what the scenario has) of every setting in which they differ, as scenario files write
    them; of a mix, whose classes have no short form, that it differs."""
    doc, before = _doc(allowed.by_name(scenario)), _doc(allowed.by_name(base))
    found = []
    for section in dict.fromkeys([*doc, *before]):
        try:
            rows = list(
                _differences(
                    {section: doc[section]} if section in doc else {},
                    {section: before[section]} if section in before else {},
                    "",
                )
            )
        except _NoShortFormError:
            found.append((section, "", "edited"))
            continue
        found += [(key, _at(before, key) or NONE, value or NONE) for key, value in rows]
    return found


def _at(doc: Mapping[str, Any], key: str) -> str:
    """A key's value as a link writes it; empty where there is none."""
    value: Any = doc
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else _short(value)


def _doc(scenario: Scenario) -> dict[str, Any]:
    doc = tomllib.loads(dumps(scenario))
    doc.pop("name", None)  # follows from the rest
    return doc


def _differences(doc: Mapping[str, Any], base: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """(dotted key, TOML literal; "" where the key goes) of everything in which the tables differ."""
    for key in dict.fromkeys([*doc, *base]):
        place, value, before = f"{prefix}{key}", doc.get(key), base.get(key)
        if value == before:
            continue
        if "." in key or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
            raise _NoShortFormError
        if isinstance(value, dict):
            yield from _differences(value, before if isinstance(before, dict) else {}, f"{place}.")
        else:
            yield place, "" if value is None else _short(value)


def _short(value: Any) -> str:
    """The value as `--set` reads it back: a text without its quotes where nothing else could be meant."""
    return (
        value
        if isinstance(value, str) and value == value.strip() and value and literal(value) == value
        else literal_of(value)
    )


def scenario_of(params: Mapping[str, str], base: Scenario, policies: Sequence[str]) -> Scenario:
    """The scenario that a link's parameters say. Raises InputError, as for a file."""
    if PACKED in params:
        return scenario_in(_unpacked(params[PACKED]), "link", policies)
    known = set(_doc(base)) | {
        "seed",
        "run",
        "workload",
        "model",
        "hardware",
        "engine",
        "cache",
        "cluster",
        "slo",
        "cost",
    }
    for key, value in params.items():
        if key.split(".")[0] not in known or len(key) + len(value) > LINK_LIMIT:
            raise InputError(
                f"link: {key[:60]!r} is no setting, expected one of a scenario's, such as cluster.replicas"
            )
    try:
        doc = apply_overrides(tomllib.loads(dumps(base)), [f"{key}={value}" for key, value in params.items()])
    except InputError as error:
        raise InputError(str(error).replace("--set", "link:", 1)) from None
    scenario = _scenario(doc, "link", policies)
    return (
        scenario if scenario.workload == base.workload else replace(scenario, name="")
    )  # the base's name is of its workload


def _unpacked(packed: str) -> bytes:
    """The text of a compressed scenario, no more of it than a scenario file may have."""
    try:
        content = zlib.decompressobj().decompress(
            base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), FILE_LIMIT_BYTES + 1
        )
    except (ValueError, binascii.Error, zlib.error):
        raise InputError("link: the scenario in it is cut short or changed, expected the whole link") from None
    return content


def scenario_in(content: bytes, name: str, policies: Sequence[str]) -> Scenario:
    """The scenario of an uploaded file. Raises InputError with one line, also for what a page may not use."""
    if len(content) > FILE_LIMIT_BYTES:
        raise InputError(f"{name}: more than {FILE_LIMIT_BYTES >> 10} KiB, expected a scenario file (TOML)")
    try:
        with shallow(name):
            doc = tomllib.loads(content.decode("utf-8-sig"))
    except InputError:
        raise
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise InputError(f"{name}: not valid TOML: {' '.join(str(error).split())[:200]}") from None
    return _scenario(doc, name, policies)


def harmless(doc: Mapping[str, Any], name: str, policies: Sequence[str]) -> Mapping[str, Any]:
    """The tables themselves; InputError when they name a file of the server, or code that nobody allowed there.

    Before anything else looks at them: checking a policy or router module:Class would import it.
    """
    for place, value, known, expected in _named(doc, policies):
        if value not in (None, *known):
            raise InputError(f"{name}: {place} = {str(value)[:80]!r}, expected {expected}")
    return doc


def _named(doc: Mapping[str, Any], policies: Sequence[str]) -> Iterator[Named]:
    """Every key that may name a file or code."""
    from sim.fleet.router import ROUTERS

    workload, own = _table(doc, "workload"), ", ".join(policies)
    yield "[workload] trace", workload.get("trace"), list(allowed.traces()), _traces(NO_FILES)
    yield "[workload] tokenizer", workload.get("tokenizer"), (), f"none: {NO_FILES}"
    curve = _table(doc, "workload.demand").get("file")
    yield "[workload.demand] file", curve, (), f"a shape, or factors: {NO_FILES}"
    yield from _system(doc, "")
    prefill = _table(doc, "disaggregation").get("prefill_profile")
    yield "[disaggregation] prefill_profile", prefill, _profiles(prefill), PROFILES
    pools = doc.get("pool")
    for i, pool in enumerate(pools if isinstance(pools, list) else ()):
        if isinstance(pool, dict):
            yield from _system(pool, f"pool.{pool.get('name', i)}")
    expected = f"one of {own} (own classes are named where the dashboard is started, --policy module:Class)"
    yield "[cache] policy", _table(doc, "cache").get("policy"), policies, expected
    for section, key in (("cluster", "router"), ("disaggregation", "prefill_router")):
        expected = f"one of {', '.join(ROUTERS)}: a page runs no code of yours"
        yield f"[{section}] {key}", _table(doc, section).get(key), list(ROUTERS), expected


def _system(doc: Mapping[str, Any], pool: str) -> Iterator[Named]:
    """The keys of [model] and [hardware], of the file or of one of its pools."""
    from calibrate.models import bundled_models, is_published
    from calibrate.resolve import gpu_name, known_gpus

    def place(section: str, key: str) -> str:
        return f"[{pool}] {section}.{key}" if pool else f"[{section}] {key}"

    model, hardware = _table(doc, "model"), _table(doc, "hardware")
    name, profile, gpu = model.get("name"), hardware.get("profile"), hardware.get("gpu")
    config = f"the name of a bundled model: {NO_FILES}; upload the config.json itself"
    yield place("model", "config"), model.get("config"), (), config
    models = f"one of {', '.join(bundled_models())}, or hf:ORG/NAME of a published checkpoint of one"
    yield place("model", "name"), name, [name] if is_published(str(name or "")) else (), models
    yield place("hardware", "profile"), profile, _profiles(profile), PROFILES
    known = [gpu] if gpu_name(str(gpu or "")) in known_gpus() else ()
    yield place("hardware", "gpu"), gpu, known, f"one of {', '.join(known_gpus())}"


def _profiles(profile: Any) -> list[Any]:
    """The profiles that this value may be."""
    from calibrate.profile import bundled_profiles
    from calibrate.resolve import gpu_name, known_gpus

    kind, _, rest = str(profile or "").partition(":")
    of_a_gpu = kind in ("atlas", "roofline") and gpu_name(rest.partition(":")[0]) in known_gpus()
    return [*bundled_profiles(), *([profile] if of_a_gpu else [])]


def _traces(no_files: str) -> str:
    own = allowed.traces()
    return f"one of {', '.join(own)}, or a mix: {no_files}" if own else f"a mix: {no_files}; upload the trace itself"


def _text(doc: Mapping[str, Any], section: str, key: str) -> str:
    return str(_table(doc, section).get(key, ""))


def _table(doc: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """A table of the file, by its dotted name; empty where there is none."""
    for part in section.split("."):
        found = doc.get(part)
        doc = found if isinstance(found, dict) else {}
    return doc


def _scenario(doc: Mapping[str, Any], name: str, policies: Sequence[str]) -> Scenario:
    from workloads.mix import resolve

    doc = dict(harmless(doc, name, policies))
    if own := allowed.traces().get(_text(doc, "workload", "trace")):
        doc["workload"] = {**doc["workload"], "trace": own}
    scenario = scenario_from_doc(doc, name)
    try:
        if not own:
            resolve(scenario.workload)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return scenario


def command(scenario: Scenario, base: Scenario) -> str:
    """The command line that gives the same summary.json."""
    try:
        changes = query(scenario, base)
    except InputError:
        changes = {PACKED: ""}
    if PACKED in changes or scenario.workload.trace:
        return "kvcast run scenario.toml --out my-run"
    name = {"name": _short(scenario.name)} if scenario.name != base.name else {}
    return " ".join(
        [
            "kvcast run examples/demo.toml",
            *(f"--set {shlex.quote(f'{key}={value}')}" for key, value in {**name, **changes}.items()),
            "--out my-run",
        ]
    )
