"""A plan in words: the verdict in a sentence, then short tables. Reads the document only, so that what is printed is
what is kept.

>>> print(as_text(plan("examples/demo.toml")))
"""

from __future__ import annotations

import math
from typing import Any

from kvcast import text
from kvcast.planner.document import PERIOD
from kvcast.planner.flags import READ
from kvcast.trust.model_error import as_words
from sim.measure.verdict import INTERVAL, POOLED

ROWS = 24  #: candidates printed at most
FLAT, SEVERAL = 0.005, 3  #: attainments this close, of at least so many fleet sizes, are the same
NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


def verdict(made: dict[str, Any]) -> str:
    """One sentence: fleet, attainment with its interval, what binds, how far it reaches, what to do next."""
    answer, wanted = made["answer"], share(made["slo"]["attainment"])
    if answer["reason"] == PERIOD:
        return (
            f"{fleet(made)} misses: it meets in the worst hour of the mix's clock and not over its whole period,"
            f" {_share(made['period']['attainment'])} of requests within {limits(made['slo'])}, target {wanted}"
        )
    if not answer["feasible"]:
        return _infeasible(made)
    parts = [
        (
            f"{fleet(made)} meets{' while undisturbed' if lives_on_its_cache(made) else ''}: {_classes(made)} of"
            f" requests within {limits(made['slo'])}, target {wanted}{_sketch(answer)}"
        ),
        *([as_words(made["model_error"])] if made["model_error"] else []),
    ]
    if made["binding"] is not None and made["binding"]["resource"] is not None:
        rivals = made["binding"].get("rivals") or []
        parts.append(
            f"binding: {' or '.join([made['binding']['resource'], *rivals])}" + (" (not told apart)" if rivals else "")
        )
    capacity = made["capacity"]
    if capacity is not None and capacity["headroom"] is not None:
        least = "at least " if capacity["breaks_at_per_s"] is None else ""
        parts.append(
            f"headroom {least}{100 * capacity['headroom']:.0f} %{_surely(capacity)}"
            + ("" if least else f", breaks at {load(capacity['breaks_at_per_s'], capacity['unit'])}")
        )
    if made["advice"]:
        parts.append(f"next: {made['advice'][0]['change']}")
    return "; ".join(parts)


def _surely(capacity: dict[str, Any]) -> str:
    """The headroom to the highest load that surely meets, where that is another."""
    low = capacity["low"]
    sure = None if not low else 1 - capacity["offered_rate_per_s"] / low
    return (
        ""
        if sure is None or sure <= 0 or round(100 * sure) >= round(100 * capacity["headroom"])
        else f" ({100 * sure:.0f} % surely)"
    )


def lives_on_its_cache(made: dict[str, Any]) -> bool:
    """Whether the fleet that meets would not do so with its caches empty."""
    return made["without_cache"] is not None and not made["without_cache"]["attains"]


def _classes(made: dict[str, Any]) -> str:
    """The share of all requests, or of each class where there are several."""
    rows = [row for row in made["answer"]["classes"] if row["attainment"] is not None]
    if len(rows) < 2:
        return _share(rows[0]["attainment"] if rows else made["answer"]["attainment"])
    return ", ".join(f"{row['name']} {_share(row['attainment'])}" for row in rows)


def _sketch(answer: dict[str, Any]) -> str:
    return " (one run)" if answer["runs"] == 1 else f" ({answer['runs']} runs)"


def _infeasible(made: dict[str, Any]) -> str:
    tried = [row for row in made["candidates"] if row["gpus"]]
    if not tried:
        return f"nothing here can run: {made['candidates'][0]['reason']}"
    best = closest(tried)
    found, name, target = _farthest(best)
    most = max(row["replicas"] for row in tried)
    reached = (
        f"at best {_share(found)}{f' of {name}' if name else ''} with {best['replicas']} {_replicas(best['replicas'])}"
        if found["mean"] is not None
        else "every one of them was hopeless"
    )
    if found["mean"] is not None and found["low"] < target <= found["mean"]:
        reached += (
            ", and the lower end of that is below the target:"
            f" {'a longer workload' if len(made['seeds']) > best['runs'] else 'more seeds or a longer workload'} would"
            " tell"
        )
    missed = (
        f", most often missed: {NAMES[best['rejected_by']]}"
        if best["rejected_by"] in NAMES
        else f", {best['rejected_by']}"
        if best["rejected_by"] not in (None, INTERVAL)
        else ""
    )
    fixed = made["answer"]["gpus"] is not None
    who = fleet(made) if fixed else f"not even {most} {_replicas(most)}"
    verb = (
        ("is not shown to meet" if made["answer"]["word"] == "not shown" else "misses")
        if fixed
        else "meets"
        if most == 1
        else "meet"
    )
    return (
        f"{who} {verb} {limits(made['slo'])} for {share(made['slo']['attainment'])} of the requests at"
        f" {text.percent(made['confidence'], 0)} confidence: {reached}{missed}{'' if fixed else _flat(tried, best)}"
    )


def closest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """The candidate that comes closest to the target."""
    return max(tried, key=lambda row: (_margin(row), row["attainment"]["mean"] or -1.0, -row["gpus"]))


def _farthest(row: dict[str, Any]) -> tuple[dict[str, Any], str, float]:
    """Attainment, name and target of a candidate's class that is farthest below its target; without a name where there
    is only one."""
    known = [one for one in row["classes"] if one["attainment"] is not None]
    if not known:
        return row["attainment"], "", 1.0
    worst = min(known, key=lambda one: one["attainment"]["mean"] - one["target"])
    return worst["attainment"], worst["name"] if len(row["classes"]) > 1 else "", worst["target"]


def _margin(row: dict[str, Any]) -> float:
    found, _, target = _farthest(row)
    return -2.0 if found["mean"] is None else found["mean"] - target


def _flat(tried: list[dict[str, Any]], best: dict[str, Any]) -> str:
    """That more replicas bring nothing, where the best combination attains about the same or more at several sizes
    below its largest."""
    rows = sorted((row for row in tried if row["label"] == best["label"]), key=lambda row: -row["replicas"])
    same: list[dict[str, Any]] = []
    for row in rows:
        if _farthest(row)[0]["mean"] is None or row["stable"] is False or _margin(row) < _margin(rows[0]) - FLAT:
            break
        same.append(row)
    if len(same) < SEVERAL or same[0]["replicas"] < 2 * same[-1]["replicas"]:
        return ""
    shares = [_farthest(row)[0]["mean"] for row in same]
    attained = (
        f"{text.percent(min(shares))} to {text.percent(max(shares))}"
        if max(shares) - min(shares) > FLAT
        else "the same"
    )
    return (
        f"; {same[-1]['replicas']} to {same[0]['replicas']} replicas attain {attained}, so more of them bring nothing"
    )


def why(made: dict[str, Any]) -> str:
    """What stands in the way of every fleet, what limits are within reach, and what other GPUs make of it."""
    found = made["why"]
    if found is None:
        return ""
    missed = {row["class"] for row in found["nearest"]}
    rows = [row for row in found["alone"] if not missed or row["class"] in missed or POOLED in missed]
    lines = [_alone(row) for row in rows if row["over_cold"] > 0] or [
        "- alone on an idle replica every request is within its limits: they miss because they wait for each other"
    ]
    label = f" ({found['label']})" if made["candidates"][0]["values"] else ""
    lines += [
        f"- nearest: with {row['replicas']} {_replicas(row['replicas'])}{label} {_nearest(row)}"
        for row in found["nearest"]
    ]
    return "\n".join(["what stands in the way:", *lines, f"- {_elsewhere(found)}"])


def _alone(row: dict[str, Any]) -> str:
    limit, one = f"{NAMES[row['limit']]} <= {text.seconds(row['limit_s'])}", row["example"]
    cached = "the same" if row["over_cached"] == row["over_cold"] else text.percent(row["over_cached"])
    size = (
        ""
        if one is None
        else f"a prompt of {one['prompt_tokens']:,} tokens"
        + ("" if row["limit"] == "ttft_s" else f" and {one['output_tokens']:,} of output")
    )
    example = "" if one is None else f" ({size} takes {text.seconds(one['alone_s'])})"
    refused = f"; {text.percent(row['refused'])} are too long to be served at all" if row["refused"] else ""
    return (
        f"- {row['class']}, {limit}: alone on an idle replica {text.percent(row['over_cold'])} of its requests are over"
        f" it with nothing cached{example}, {cached} with all that can be reused in the cache{refused}"
    )


def _nearest(row: dict[str, Any]) -> str:
    reached = f"{text.percent(row['attainment'])} of {row['class']} are within their limits"
    if row["needs_s"] is not None:
        return (
            f"{reached}, and {share(row['target'])} would be at {NAMES[row['limit']]} <="
            f" {text.seconds(_up(row['needs_s']))}"
        )
    if row["factor"] is not None:
        return f"{reached}, and {share(row['target'])} would be with limits {_up(row['factor']):,.12g} times as long"
    return (
        f"{reached}: the fleet does not keep up, so no limit is long enough"
        if row["keeps_up"] is False
        else f"{reached}, and fewer than {share(row['target'])} complete at all"
    )


def _up(value: float) -> float:
    """Three significant digits that a limit can be set to."""
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return math.ceil(value * 10**digits - 1e-9) / 10**digits


def _elsewhere(found: dict[str, Any]) -> str:
    """Whether another GPU or width attains the target, and the first that does: of the fewest GPUs, the plan's own
    before others."""
    tried = [row for row in found["layouts"] if row["verdict"] is not None]
    if not tried:
        return "no other width or bundled GPU of this model can start"
    first = min((row for row in tried if row["attains"]), key=lambda row: row["gpus"], default=None)
    if first is None:
        return f"none of {len(tried)} other layouts of about {gpus(found['gpus'])} attains the target in one run"
    who, verb = (
        f"{first['replicas']} {_replicas(first['replicas'])} of {first['tensor_parallel']} x {first['gpu']}",
        ("attains" if first["replicas"] == 1 else "attain"),
    )
    return (
        f"of {len(tried)} other layouts of about {gpus(found['gpus'])}, {who} {verb} the target in one run: plan with"
        f" --set hardware.profile={first['profile']} --set hardware.tensor_parallel={first['tensor_parallel']}"
    )


def _layouts(made: dict[str, Any]) -> str:
    rows = [] if made["why"] is None else made["why"]["layouts"]
    cells = [
        [
            row["gpu"],
            row["profile"],
            str(row["tensor_parallel"]),
            str(row["replicas"]),
            str(row["gpus"]),
            _share(row["attainment"]) if row["verdict"] else text.UNKNOWN,
            (row["verdict"] or "no run") + (f" ({row['class']})" if row["class"] else ""),
        ]
        for row in rows
    ]
    return (
        text.table(["GPU", "profile", "TP", "replicas", "GPUs", "attainment", "one run"], cells, left=2)
        if cells
        else ""
    )


def fleet(made: dict[str, Any]) -> str:
    """6 x H200-SXM, or 3 replicas of 2 x H200-SXM."""
    answer = made["answer"]
    device = made["device"] or "GPU"
    return (
        f"{answer['gpus']} x {device}"
        if answer["gpus_per_replica"] == 1
        else (
            f"{answer['replicas']} replica{'s' if answer['replicas'] != 1 else ''} of {answer['gpus_per_replica']} x"
            f" {device}"
        )
    )


def share(value: float) -> str:
    """A share that somebody chose, as it was chosen."""
    return f"{100 * value:.6g} %"


def _share(found: dict[str, Any]) -> str:
    """A share with its interval: the longer side, or both ends where they are far from alike."""
    down, up = found["mean"] - found["low"], found["high"] - found["mean"]
    if max(down, up) > 0.01 and max(down, up) > 2 * min(down, up):
        return f"{100 * found['mean']:.1f} % ({100 * found['low']:.1f} to {100 * found['high']:.1f})"
    return f"{100 * found['mean']:.1f} % +- {100 * max(down, up):.1f} %"


def limits(slo: dict[str, Any]) -> str:
    """TTFT <= 500 ms and TPOT <= 40 ms, per SLO class where they differ."""

    def of(one: dict[str, float | None]) -> str:
        return " and ".join(f"{NAMES[key]} <= {text.seconds(value)}" for key, value in one.items() if value is not None)

    default = of(slo["limits"])
    named = [f"{name}: {of(one) or 'no limit'}" for name, one in slo["classes"].items()]
    return (
        "; ".join([*([default] if default else []), *named])
        if not named
        else f"their limits ({'; '.join([*([default] if default else []), *named])})"
    )


def load(value: float | None, unit: str) -> str:
    if value is None:
        return text.UNKNOWN
    return f"{number(value, unit)} {unit}"


def number(value: float | None, unit: str) -> str:
    return (
        text.UNKNOWN if value is None else f"{value:.3g}" if unit == "requests/s" and value < 1000 else f"{value:,.0f}"
    )


# -- the whole plan ----------------------------------------------------------------------------------------------------


def as_text(made: dict[str, Any]) -> str:
    parts = [
        verdict(made),
        why(made),
        _layouts(made),
        *(f"caution: {line}" for line in made["caution"]),
        size(made),
        _candidates(made),
        _reach(made),
        _binding(made),
        _advice(made),
        _more(made),
        _launch(made),
        _launched(made),
        _made_of(made),
    ]
    tables = (_candidates(made), _layouts(made), _launch(made))  # too wide for a page, and of no use when broken
    return "\n\n".join(part if part in tables else text.wrapped(part) for part in parts if part)


def size(made: dict[str, Any]) -> str:
    answer = made["answer"]
    if answer["replicas"] is None:
        return ""
    usd = "" if answer["usd_per_hour"] is None else f", {text.usd(answer['usd_per_hour'])} an hour"
    label = "" if not answer["values"] else f" ({answer['label']})"
    lines = [
        f"{answer['replicas']} {_replicas(answer['replicas'])}{label}, {gpus(answer['gpus'])},"
        f" {answer['gpu_hours_per_day']:,.0f} GPU-hours a day{usd}, router {answer['router']}"
    ]
    if answer["usd_per_request"] is not None:
        million = ", ".join(
            f"{text.usd(answer[f'usd_per_million_{kind}_tokens'])} {kind}" for kind in ("input", "output", "total")
        )
        lines.append(
            f"at the offered {answer['offered_per_s']:.3g} requests/s: {text.usd(answer['usd_per_month'])} a month,"
            f" {text.usd(answer['usd_per_request'])} a request; per million tokens {million} (one bill, three ways)"
        )
    if made["period"] is not None:
        lines.append(
            f"over the whole period of {made['period']['period_s'] / 3600:g} hours:"
            f" {_share(made['period']['attainment'])} (one run)"
        )
    return "\n".join([*lines, *_by_seed(answer["by_seed"])])


def _by_seed(found: dict[str, int] | None) -> list[str]:
    """How often the answer changes with the seed."""
    if found is None:
        return []
    if found["same"] == found["runs"]:
        return [f"every one of {found['runs']} independent runs says so by itself"]
    others = [
        f"{found[key]} would do with {words}"
        for key, words in (("fewer", "a replica less"), ("more", "no fewer than a replica more"))
        if found[key]
    ]
    return [
        f"the answer changes with the seed: of {found['runs']} independent runs {found['same']} say so by themselves,"
        f" {', '.join(others)}"
    ]


def gpus(n: int) -> str:
    return f"{n} GPU" if n == 1 else f"{n} GPUs"


def _replicas(n: int) -> str:
    return "replica" if n == 1 else "replicas"


def _candidates(made: dict[str, Any]) -> str:
    rows = made["candidates"]
    varied = bool(rows and rows[0]["values"])
    shown = (
        rows
        if len(rows) <= ROWS
        else sorted(rows, key=lambda row: (row["verdict"] != "meets", row["gpus"] or 1e9))[:ROWS]
    )
    cells = []
    for row in shown:
        attainment = row["attainment"]
        share = (
            _share(attainment)
            if attainment["mean"] is not None
            else f"below {text.percent(attainment['high'])}"
            if attainment["high"] is not None
            else text.UNKNOWN
        )
        why = row["reason"] or _because(row)
        mark = "*" if (row["extrapolated"] or 0.0) >= 0.01 else ""
        cells.append(
            [
                *([_label(row)] if varied else []),
                row["verdict"] + mark,
                _short(why),
                text.count(row["replicas"]),
                text.count(row["gpus"]),
                text.usd(row["usd_per_hour"]),
                text.count(row["runs"] or None),
                share,
                text.milliseconds(row["ttft_ms_p99"]),
                text.milliseconds(row["tpot_ms_p99"]),
            ]
        )
        cells += [
            [
                *([""] if varied else []),
                "",
                f"  {each['name']}: {each['verdict']}",
                "",
                "",
                "",
                "",
                _share(each["attainment"]),
                "",
                "",
            ]
            for each in row["classes"]
            if len(row["classes"]) > 1 and each["attainment"]
        ]
    header = [
        *(["combination"] if varied else []),
        "verdict",
        "because of",
        "replicas",
        "GPUs",
        "$/h",
        "runs",
        "attainment",
        "TTFT p99",
        "TPOT p99",
    ]
    lines = [text.table(header, cells, left=3 if varied else 2)]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} more in plan.json and with --json")
    if any(cell[1 if varied else 0].endswith("*") for cell in cells):
        lines.append("*: 1 % or more of the simulated time rests on extrapolated step times")
    rejected = ", ".join(f"{NAMES.get(key, key)} {n}" for key, n in made["rejected_by"].items() if n)
    return "\n".join([*lines, *([f"not chosen: {rejected}"] if rejected else [])])


def _because(row: dict[str, Any]) -> str:
    """What a fleet failed by, and which class."""
    reason = NAMES.get(row["rejected_by"], row["rejected_by"]) if row["rejected_by"] else ""
    return f"{row['class']}: {reason}" if row["class"] else reason


def _label(row: dict[str, Any]) -> str:
    """The values without the sections of their keys."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in row["values"].items())


def _short(words: str) -> str:
    return words if len(words) <= 48 else f"{words[:45]}..."


def _reach(made: dict[str, Any]) -> str:
    capacity = made["capacity"]
    if capacity is None:
        return ""
    unit = capacity["unit"]
    if capacity["slo_capacity_per_s"] is None:
        return f"SLO capacity: below a 32nd of the offered load ({load(capacity['offered_rate_per_s'], unit)})"
    least = "at least " if capacity["breaks_at_per_s"] is None else ""
    between = (
        f" (from {load(capacity['low'], unit)}; no higher load was looked at)"
        if least
        else f" (from {load(capacity['low'], unit)} to {load(capacity['high'], unit)})"
    )
    knee = (
        ""
        if made["knee_per_s"] is None
        else f"; knee of goodput at {made['knee_per_s']:.3g} requests/s: more load brings no more good answers"
    )
    lines = [
        f"SLO capacity, undisturbed: {least}{load(capacity['slo_capacity_per_s'], unit)}{between}, offered"
        f" {load(capacity['offered_rate_per_s'], unit)}{knee}"
    ]
    cells = [
        [
            number(row["load"], unit),
            text.percent(row["attainment"]),
            f"{row['goodput_per_s']:.3g}" if row["goodput_per_s"] is not None else text.UNKNOWN,
            text.milliseconds(row["ttft_ms_p50"]),
            text.milliseconds(row["ttft_ms_p99"]),
            text.milliseconds(row["tpot_ms_p99"]),
            {None: "?", True: "yes", False: "NO"}[row["stable"]],
        ]
        for row in made["rates"]
    ]
    return "\n".join(
        [
            *lines,
            text.table([unit, "attainment", "goodput/s", "TTFT p50", "TTFT p99", "TPOT p99", "stable"], cells, left=0),
        ]
    )


def _binding(made: dict[str, Any]) -> str:
    if made["binding"] is None:
        return ""
    rows = made["binding"]["changes"]
    cells = [
        [row["resource"], text.percent(row["attainment"]), f"{100 * row['gain']:+.1f} pp", _range(row)]
        for row in rows
        if row["gain"] is not None
    ]
    left_out = [f"{row['resource']} ({row['reason']})" for row in rows if row["gain"] is None and row["reason"]]
    lines = [
        f"what binds: {made['binding']['words']}",
        text.table(["+20 % of", "attainment", "gain", "95 % interval"], cells),
    ]
    return "\n".join([*lines, *([f"not tried: {'; '.join(left_out)}"] if left_out else [])])


def _range(row: dict[str, Any]) -> str:
    return text.UNKNOWN if row["gain_low"] is None else f"{100 * row['gain_low']:+.1f} to {100 * row['gain_high']:+.1f}"


def _advice(made: dict[str, Any]) -> str:
    if made["advice"] is None:
        return ""
    tried = sum(row["gain"] is not None for row in made["tried"])
    if not made["advice"]:
        return f"advice: none of {tried} changes that were simulated helps"
    lines = [f"changes that help most, of {tried} that were simulated (by one run each, with and without):"]
    for place, row in enumerate(made["advice"], 1):
        lines.append(f"{place}. {row['words']}" + "".join(f"\n   --set '{one}'" for one in row["set"]))
    return "\n".join(lines)


def _more(made: dict[str, Any]) -> str:
    lines = []
    rows = made["growth"] or []
    if rows:
        advised = any(row["advised"] for row in rows)
        cells = [
            [f"{row['factor']:g}x", *_grown(row), *(_grown(row["advised"] or {}) if advised else [])] for row in rows
        ]
        header = ["load", "replicas", "GPUs", "$/h", *(["replicas", "GPUs", "$/h"] if advised else [])]
        lines.append(
            "at larger"
            f" loads{', as it is and with ' + next(row['advised']['change'] for row in rows if row['advised']) if advised else ''}:\n{text.table(header, cells, left=1)}"  # noqa: E501
        )
    spare = made["n_plus_1"]
    if spare is not None:
        down = (
            "nothing is left"
            if spare["attainment_one_down"] is None
            else f"attainment {text.percent(spare['attainment_one_down'])}"
        )
        survives = "" if spare["replicas"] is None else f"; {spare['replicas']} replicas survive the loss of one"
        lines.append(
            f"one replica down: {down}{' (still meets)' if spare['enough'] else ''}{survives}; in the steady state, the"
            " failure itself is not simulated"
        )
    return "\n".join(lines)


def _grown(row: dict[str, Any]) -> list[str]:
    return [text.count(row.get("replicas")), text.count(row.get("gpus")), text.usd(row.get("usd_per_hour"))]


def command_of(launch: dict[str, Any]) -> tuple[str, list[str]]:
    """The engine that a plan starts, and its command line."""
    return next((engine, launch[engine]) for engine in READ if launch.get(engine))


def _launch(made: dict[str, Any]) -> str:
    import shlex

    launch = made["answer"]["launch"]
    if launch is None:
        return ""
    _, command = command_of(launch)
    return "\n".join(
        [f"launch, {launch['words']}:", "  " + shlex.join(command), *(f"  note: {note}" for note in launch["notes"])]
    )


def _launched(made: dict[str, Any]) -> str:
    """What became of the flags of --from-launch or --from-log."""
    given = made["launched"]
    if given is None:
        return ""
    told = (
        ("taken over", "set"),
        ("without effect on timing and cache", "no_effect"),
        ("NOT simulated", "not_modelled"),
        ("UNKNOWN, not taken over", "unknown"),
    )
    return "\n".join(
        [f"{given['engine']} flags {what}: {', '.join(given[key])}" for what, key in told if given[key]]
        + given["notes"]
    )


def _made_of(made: dict[str, Any]) -> str:
    done = made["simulations"]
    run = "" if done["run"] is None else f" ({done['reused']} were there already), {done['cpu_s']:.0f} CPU-s"
    lines = [
        f"attainment at {text.percent(made['confidence'], 0)} confidence: {made['method']}; seeds"
        f" {', '.join(map(str, made['seeds']))}"
    ]
    lines.append(
        f"{done['distinct']} simulations, {done['stopped_early']} of them stopped early because the target was out of"
        f" reach{run}"
    )
    return "\n".join([*lines, *(f"note: {note}" for note in made["notes"])])
