"""The card in words, and the first bound in a line: what a terminal shows.

The one idea: words read the document only, so that what is printed is what `--json` gives.

>>> print(as_text(ask(use="chat", users=300, price=3.5)))
"""

from __future__ import annotations

import math
import shlex
from typing import Any

from kvcast import text
from kvcast.planner.trials import NOT_SHOWN
from kvcast.planner.words.phrases import NAMES, gpus, interval_share, replicas, share

NAMES_OF = {"system": "system prompt", "new_tokens": "new tokens", "kv": "KV", "ttft_s": "TTFT", "tpot_s": "TPOT"}
BEYOND = "step times beyond what was measured"


def as_text(card: dict[str, Any]) -> str:
    """The whole card; lines are wrapped at 100 columns."""
    parts = [
        title(card),
        "\n".join(taken(card)),
        answer(card),
        "\n".join([*gives_way(card), *one_down(card), *without_cache(card), *helps(card), *needs(card)]),
        way_out(card),
        "\n".join([*cautions(card), again(card)]),
    ]
    return "\n\n".join(text.wrapped(part) for part in parts if part)


def first(found: dict[str, Any]) -> str:
    """The first bound, before anything is simulated."""
    about = (
        f"the work alone asks for about {gpus(found['gpus'])} (TP {found['width']})"
        if found["gpus"] is not None
        else f"about {_round(found['users_a_replica']):,} users a replica of {found['width']} by its work and KV memory"
    )
    limits = f"alone on an idle replica {text.percent(found['cold_share'], 0)} of the requests are within their limits"
    prompt = (
        f"a first prompt of {found['cold_prompt_tokens']:,} tokens takes {text.seconds(found['cold_ttft_s'])} to its"
        " first token with nothing cached"
    )
    lines = [
        f"first bound (arithmetic, nothing simulated yet): {about}; {prompt}; {limits}, and"
        f" {text.percent(found['warm_share'], 0)} with all in the cache that can be"
    ]
    if not found["possible"]:
        least = found["reach_ttft_s"]
        lines.append(
            f"no fleet of these will do: {share(found['share'])} are asked for"
            + ("" if least is None else f"; alone and cached TTFT <= {text.seconds(_up(least))} is the least for that")
        )
    return "\n".join(lines)


def told(document: dict[str, Any]) -> str:
    """What is known by now (kvcast.asking.answering), for those who wait; empty where the end of it says the same."""
    if document["stage"] == "bound":
        return f"{first(document['first'])}\n"
    if document["stage"] == "candidate":
        return candidate(document)
    return f"\n{answer(document['card'])}\n" if document["stage"] == "headline" else ""


def candidate(document: dict[str, Any]) -> str:
    """A fleet that was judged, in a line."""
    row = document["row"]
    settled = f", {row['runs']} runs" if row["runs"] > 1 else ""
    low, high = row["attainment"]["low"], row["attainment"]["high"]
    if row["attainment"]["mean"] is None:
        attained = "" if high is None else f" (below {text.percent(high)})"
    else:
        attained = f" ({text.percent(row['attainment']['mean'])}; {100 * low:.1f} to {100 * high:.1f}{settled})"
    each = row["gpus"] // row["replicas"]
    size = gpus(row["gpus"]) if each == 1 else f"{gpus(row['gpus'])} ({row['replicas']} x {each})"
    return f"  {_number(document['users'])} users on {size}: {row['verdict']}{attained}"


def title(card: dict[str, Any]) -> str:
    asked, load = card["question"], card["load"]
    who = f"{asked['title']}, {asked['model']} in {asked['weights']} on {asked['gpu']}"
    if card["asked"] == "gpus":
        return f"How many GPUs do {_round(load['users']):,} users need? ({who})"
    return f"How many users do {gpus(card['answer']['gpus'])} serve? ({who})"


def taken(card: dict[str, Any]) -> list[str]:
    """What was taken for granted, and how users became requests: two lines."""
    asked, load = card["question"], card["load"]
    values = {
        "use": asked["title"],
        "system": f"{asked['system']:,} tokens of system prompt and tools",
        "new_tokens": f"{asked['new_tokens']:,} new tokens a turn",
        "answer": f"answers of {asked['answer']:,}",
        "model": asked["model"],
        "weights": f"weights in {asked['weights']}",
        "kv": f"KV in {asked['kv'] or 'the default of the weights'}",
        "gpu": asked["gpu"],
        "price": "no price (--price)",
        "share": f"for {share(asked['share'])} of requests",
        "router": f"router {asked['router']}",
        "ttft_s": _limit("TTFT", asked["ttft_s"]),
        "tpot_s": _limit("TPOT", asked["tpot_s"]),
    }
    granted = ", ".join(values[name] for name in card["taken"])
    compacted = "" if asked["compacted_at"] is None else f", compacted after {asked['compacted_at']} turns"
    day = "" if load["hours"] is None else f" (sessions of a day in {load['hours']:g} hours)"
    users = (
        f"load: {_number(load['users'])} users at once x {load['requests_per_session']:.3g} requests in"
        f" {text.minutes(load['user_s'])} each = {load['requests_per_s']:.3g} requests/s{day}; context"
        f" {asked['context']:,} tokens{compacted}"
    )
    return [f"taken: {granted or 'nothing'}", users]


def _limit(name: str, limit_s: float | None) -> str:
    return f"no limit on {name}" if limit_s is None else f"{name} <= {text.seconds(limit_s)}"


def answer(card: dict[str, Any]) -> str:
    found, asked = card["answer"], card["question"]
    limits = " and ".join(_limit(name, asked[key]) for key, name in NAMES.items() if asked.get(key) is not None)
    if found["replicas"] is None:
        return f"No fleet was found: {card['plan']['verdict']}"
    fleet = f"{found['gpus']} x {found['device']} ({found['replicas']} {replicas(found['replicas'])}"
    fleet += ")" if found["gpus_per_replica"] == 1 else f" of {found['gpus_per_replica']})"
    attained = interval_share(found["attainment"]) if found["attainment"]["mean"] is not None else "too few"
    runs = "one run" if found["runs"] == 1 else f"{found['runs']} runs"
    within = f"{attained} of requests within {limits} ({share(asked['share'])} asked for, {runs})"
    if not found["feasible"]:
        because = f" ({found['reason']})" if found["reason"] and found["reason"] not in NAMES else ""
        return f"NO FLEET MEETS THIS. The closest, {fleet}, {found['word']}{because}: {within}"
    users = f"{_number(found['users'])} users on "
    verb = "meets and recovers from a burst" if found["recovers"] else found["word"]
    return "\n".join([f"{users}{fleet}   {_money(found)}", f"{verb}: {within}   [{basis(card)}]"])


def _money(found: dict[str, Any]) -> str:
    if found["usd_per_month"] is None:
        return "no cost: give --price"
    million = found["usd_per_million_total_tokens"]
    each = "" if million is None else f"   {text.usd(million)} a million tokens"
    return (
        f"{text.usd(found['usd_per_month'])} a month   {text.usd(found['usd_per_year'])} a year  "
        f" {text.usd(found['usd_per_user'])} a user and month{each}"
    )


def basis(card: dict[str, Any]) -> str:
    """Where the step times are from, in a word or two."""
    found = card["basis"]
    beyond = found["extrapolated"] or 0.0
    if found["word"] == "data sheet":
        return "step times from a data sheet, +- 30 %"
    more = f": {text.percent(beyond)} of the time on {BEYOND}" if beyond >= 0.001 else ""
    kind = "between measured points" if found["word"] == "interpolated" else "extrapolated"
    return f"step times {kind}{more}"


def gives_way(card: dict[str, Any]) -> list[str]:
    found = card["gives_way"]
    if found is None:
        return []
    what = " or ".join([found["resource"], *found["rivals"]]) if found["resource"] else "no single resource"
    first = "Gives way" if found["words"] is None else f"Gives way first: {what},"  # what binds is looked at later
    if found["at_least"]:
        return [f"Nothing gives way up to {found['next_gpu_users']:,} users, the most that were looked at."]
    until = " (it would not come back from a burst)" if found["because"] == "recovery" else ""
    more = card["answer"]["usd_per_month_per_replica"]
    cost = "" if more is None else f" (a replica more: {text.usd(more)} a month)"
    return [
        f"{first} at {found['users']:,} users. Next GPU needed above {found['next_gpu_users']:,} users{until}{cost}."
    ]


def one_down(card: dict[str, Any]) -> list[str]:
    found = card["one_down"]
    if found is None:
        return []
    if found["attainment_one_down"] is None:
        told = "nothing is left"
    else:
        word = "still meets" if found["enough"] else "not shown to meet" if found["verdict"] == NOT_SHOWN else "misses"
        told = f"{word} ({text.percent(found['attainment_one_down'])})"
        told += ", undisturbed" if card["plan"]["recovery"] is not None else ""  # no burst is asked of what is left
    more = "" if found["enough"] or found["replicas"] is None else f"; {found['replicas']} replicas survive a loss"
    return [f"One replica down: {told}{more}."]


def without_cache(card: dict[str, Any]) -> list[str]:
    """Whether the prefix cache is worth it: the same fleet at the same load without one, by one run."""
    found = card["without_cache"]
    if found is None:
        return []
    if found["attainment"]["mean"] is None:
        return ["Without the prefix cache the same fleet misses by far: its run was ended early."]
    share, needed = text.percent(found["attainment"]["mean"], 0), "" if found["attains"] else ": it lives on its cache"
    return [f"Without the prefix cache the same fleet has {share} of the requests within the limits (one run){needed}."]


def helps(card: dict[str, Any]) -> list[str]:
    rows = card["helps"]
    if not rows:
        return [] if card["plan"]["advice"] is None else ["What helps: none of the changes that were simulated."]
    return [f"What helps ({helps_by(card)}):", *(f"  {help_line(row)}" for row in rows)]


def helps_by(card: dict[str, Any]) -> str:
    """What stands behind the lines of what helps: fewer GPUs come back from a burst as the answer does, loads held are
    not asked to."""
    part = " of a part of the fleet" if any(row["sample"] for row in card["plan"]["candidates"]) else ""
    held = card["plan"]["recovery"] is not None and any(row["users"] for row in card["helps"])
    return f"one run each{part}{'; what it holds is undisturbed' if held else ''}"


def help_line(row: dict[str, Any]) -> str:
    """What a change gives."""
    gains = [f"{gpus(-row['gpus'])} fewer"] if row["gpus"] else []
    gains += [f"holds {row['users']:,} users"] if row["users"] else []
    asks = f" (asks for {row['asks_for']})" if row["asks_for"] else ""
    return f"{row['change']}: {', '.join(gains)}{asks}"


def needs(card: dict[str, Any]) -> list[str]:
    return [f"Needs: {one}." for one in card["needs"]]


def way_out(card: dict[str, Any]) -> str:
    """One line a way, with the flags that ask it."""
    if card["answer"]["feasible"]:
        return ""
    rows = card["way_out"]
    if not rows:
        return "No way out was found among longer limits, wider replicas and other GPUs."
    return "\n".join(["Ways out (by one run each; ask again with the flags):", *(f"  {way_line(row)}" for row in rows)])


def way_line(row: dict[str, Any]) -> str:
    """A way out, with the flags that ask it."""
    cost = "" if row["usd_per_month"] is None else f", {text.usd(row['usd_per_month'])} a month"
    flags = shlex.join(row["flags"])
    if row["kind"] == "limit":
        return f"{NAMES[row['limit']]} <= {text.seconds(row['value'])} with {gpus(row['gpus'])}{cost}: {flags}"
    if row["kind"] == "recovery":
        return f"hold the load, without coming back from a burst, with {gpus(row['gpus'])}{cost}: {flags}"
    what = "wider replicas" if row["kind"] == "wider" else f"another GPU, {row['device']}"
    n, each = row["replicas"], row["gpus_per_replica"]
    return f"{what}: {gpus(row['gpus'])} ({n} {replicas(n)} of {each}){cost}: {flags}"


def cautions(card: dict[str, Any]) -> list[str]:
    lines = [f"caution: {line}" for line in card["plan"]["caution"]]
    if not card["sharing_known"]:
        lines.append(
            "note: the source of this use says nothing about shared text, so only the system prompt can hit the prefix"
            " cache; a real fleet may do better"
        )
    return lines


def again(card: dict[str, Any]) -> str:
    done = card["plan"]["simulations"]
    cpu = "" if done["cpu_s"] is None else f", {done['cpu_s']:.0f} CPU-s"
    return f"{done['distinct']} simulations{cpu}; the same as a plan of the scenario underneath: {card['command']}"


def _round(users: float) -> int:
    return max(int(users), 1)


def _number(users: float) -> str:
    return f"{users:,.0f}" if users >= 10 else f"{users:.2g}"


def _up(value: float) -> float:
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    return math.ceil(value * 10**digits - 1e-9) / 10**digits
