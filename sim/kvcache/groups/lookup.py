"""How long a cached prefix is when every group has a say (ENGINE_MODES 1, look-up and combining).

The one idea: what a group has of a path is a few spans of blocks, so every kind of group answers from spans, and the
same code asks what is cached now and what ever was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from calibrate.kv_groups import CHUNKED, FULL, STATE
from sim.kvcache.chains import Path
from sim.kvcache.groups.rules import GroupRules, Span

Spans = Callable[[int], Sequence[Span]]
"""What a content has of a node, ascending and apart."""


def find(kinds: Sequence[Sequence[GroupRules]], paths: Sequence[Path], spans: Spans, limit: int) -> tuple[int, int]:
    """(tokens that all groups hit, longest result of any): at most `limit` tokens. kinds: groups of equal rules
    together, full ones first; paths: of each group by its index."""
    one_round = len(kinds) == 1 or (len(kinds) == 2 and kinds[0][0].kind == FULL)
    hit, longest, first = limit, 0, True
    have: list[list[Span]] = []
    while True:
        before = hit
        for i, groups in enumerate(kinds):
            rules = groups[0]
            if first:
                have.append(common([along(paths[g.index], spans, limit // g.b) for g in groups]))
            elif rules.kind == FULL:
                continue
            hit = reach(rules, have[i], hit)
            longest = max(longest, hit)
        if one_round or hit == before:
            return hit, longest
        first = False


def reach(rules: GroupRules, have: Sequence[Span], limit: int) -> int:
    """Tokens that one kind hits, of which it has these spans."""
    n, b, aligned = limit // rules.b, rules.b, rules.aligned
    if rules.kind in (FULL, CHUNKED):
        start = limit // rules.window * rules.window // b if rules.kind == CHUNKED else 0
        end = next((min(hi, n) for lo, hi in have if lo <= start < hi), start)
        return end * b // aligned * aligned if rules.kind == FULL else end * b
    for lo, hi in reversed(have):
        end = min(hi, n) * b // aligned * aligned // b
        if end > lo and (end - lo >= rules.need or (lo == 0 and rules.kind != STATE)):
            return end * b
    return 0


def along(path: Path, spans: Spans, limit: int) -> list[Span]:
    """The spans of a path's nodes, at most `limit` blocks deep; those that touch are one."""
    out: list[Span] = []
    above = 0
    for node, end in path:
        if above >= limit:
            break
        for lo, hi in spans(node):
            if lo >= limit or lo >= end:
                break
            if out and out[-1][1] == lo:
                out[-1] = (out[-1][0], min(hi, limit, end))
            else:
                out.append((lo, min(hi, limit, end)))
        above = end
    return out


def common(each: Sequence[list[Span]]) -> list[Span]:
    """What is in all of them."""
    have = each[0]
    for other in each[1:]:
        if other != have:
            have = list(_both(have, other))
    return have


def _both(a: list[Span], b: list[Span]) -> Iterator[Span]:
    i = j = 0
    while i < len(a) and j < len(b):
        lo, hi = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if lo < hi:
            yield lo, hi
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
