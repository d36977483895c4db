"""A per-block reference of vLLM V1 with several KV groups: sliding windows, chunked-local attention and Mamba states.

As tests.reference_vllm, whose steps these are, with one table of blocks per group and every block an object; written
from the rules (ENGINE_MODES 1) and sharing no code with `sim/`.

    python -m tests.reference_hybrid CASE.json...        # replay recorded cases and compare

Case config, beside reference_vllm's: kv_cache_groups (type, block_size, sliding_window or attention_chunk_size),
scheduler_block_size, hash_block_size, prefix_cache_retention_interval (0, null, n), mamba_cache_mode (align). An older
case says `sliding_window` alone: one group that keeps every block it has computed.

Fixed here, as no recorded case decides it: an interval n below a block, or no multiple of one, marks the blocks that
end within `need` blocks of a multiple of n; Mamba states at multiples of n come beside the two of interval 0.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from tests import reference_vllm
from tests.reference_cache import Block, FreeListPool
from tests.reference_vllm import Request, Step, outputs_of, read_case, tokens_of

Entry = Block | None
"""Of a group's table; None where a block was given back, or never needed."""


class Group:
    """One KV group: what it keeps of a request, and what it needs of one."""

    def __init__(self, spec: dict[str, Any], index: int) -> None:
        self.kind: str = spec["type"]
        self.index = index
        self.b: int = spec["block_size"]
        self.w: int = spec.get("sliding_window") or spec.get("attention_chunk_size") or 0
        self.spec = (self.kind, self.b, self.w)
        self.need = {"sliding_window": -(-(self.w - 1) // self.b), "mamba": 1}.get(self.kind, 0)

    def skipped(self, n: int) -> int:
        """Blocks that nobody looks at once n tokens are processed."""
        if self.kind == "sliding_window":
            return max(0, n - self.w + 1) // self.b
        if self.kind == "chunked_local":
            return n // self.w * self.w // self.b
        return max(0, n - 1) // self.b if self.kind == "mamba" else 0

    def cap(self, step_tokens: int, longest: int) -> float:
        if self.kind == "sliding_window":
            return -(-min(self.w - 1 + step_tokens, longest) // self.b) + 1
        if self.kind == "chunked_local":
            return -(-min(self.w + step_tokens, longest) // self.b)
        return 2 if self.kind == "mamba" else math.inf


class Tables:
    """What one request holds, in every group."""

    def __init__(self, groups: list[Group]) -> None:
        self.blocks: list[list[Entry]] = [[] for _ in groups]
        self.hashed = [0 for _ in groups]  # blocks passed by the counter
        self.retired = [0 for _ in groups]
        self.last = [-1 for _ in groups]  # Mamba: the last entry before the previous allocation
        self.admitted = False


class Engine(reference_vllm.Engine):
    def __init__(self, case: dict[str, Any], step_time: Any = None, check: bool = False):
        c = case["config"]
        old = c.get("sliding_window")
        specs = c.get("kv_cache_groups") or [
            {"type": "sliding_window", "block_size": c["block_size"], "sliding_window": old}
        ]
        self.groups = [Group(spec, i) for i, spec in enumerate(specs)]
        self.S = math.lcm(*(g.b for g in self.groups))
        self.retention: int | None = c.get("prefix_cache_retention_interval", None if old else 0)
        super().__init__(case, step_time, check)
        self.pool: FreeListPool
        self.cap_tokens = self.token_budget * (2 if self.asynchronous else 1)
        self.tables = {r.id: Tables(self.groups) for r in self.requests}
        self.junction = dict.fromkeys(self.tables, 0)
        self.ever_hashed: dict[Any, list[Block]] = {}
        self.lost_to_windows: dict[int, int] = {}  # of the ceiling, by request
        self.hashed_now: set[Block] = set()  # Mamba states hashed in this call
        self.in_call: Step | None = None

    def _request(self, r: dict[str, Any]) -> Request:
        request = super()._request(r)
        tokens = tokens_of(r) + outputs_of(r["id"], r["max_tokens"])
        request.keys = self.hasher.chain(tokens, self.S, r.get("cache_salt"), r.get("lora"))
        by_size = {g.b: self.hasher.chain(tokens, g.b, r.get("cache_salt"), r.get("lora")) for g in self.groups}
        request.group_keys = [[(key, g.index) for key in by_size[g.b]] for g in self.groups]  # type: ignore[attr-defined]
        return request

    # ---- arrivals and steps ---------------------------------------------------------------------------------------
    def _blocks_for(self, tokens: int) -> int:
        """Only for what can never fit: the least that all groups must have at once."""
        cap = self.token_budget * (2 if self.asynchronous else 1)
        return sum(int(min(-(-tokens // g.b), g.cap(cap, self.max_model_len))) for g in self.groups)

    def _held(self) -> list[list[Block]]:
        return [[b for b in entries if b is not None] for t in self.tables.values() for entries in t.blocks]

    def _schedule(self) -> Step:
        self.hashed_now.clear()
        return super()._schedule()

    def _cut(self, r: Request, start: int, n: int, budget: int) -> int:
        """Chunks of a prefill end where a state can be kept."""
        states = [g for g in self.groups if g.kind == "mamba"]
        if not states or start >= max(r.prompt, r.known - 1) or n <= 0:
            return n
        b, end = states[0].b, start + n
        if end < max(r.prompt, r.known - 1):
            down = end // b * b
            if down > start or b <= min(self.token_budget, self.threshold or self.token_budget):
                end = max(down, start)
        points = [-(-start // b) * b if start % b else 0, (r.known - 1) // b * b]
        if self.junction[r.id] > start:
            points.append(start + (self.junction[r.id] - start) // b * b)
        end = min([p for p in points if start < p < end], default=end)
        return end - start

    # ---- memory ---------------------------------------------------------------------------------------------------
    def _in_flight(self, r: Request) -> int:
        return self.in_flight.scheduled.get(r.id, 0) if self.in_flight is not None else 0

    def _grow(self, r: Request, n: int) -> bool:
        table = self.tables[r.id]
        self._retire(r, max(0, r.computed - self._in_flight(r)))
        if sum(self._need(g, table, r.computed + n) for g in self.groups) > self.pool.available():
            return False
        self._take(r, r.computed + n)
        self._enter(r, min(r.computed + n, self._tokens_known(r)))
        return True

    def _need(self, g: Group, table: Tables, tokens: int, cap: float = math.inf) -> int:
        wanted, held = int(min(-(-tokens // g.b), cap)), len(table.blocks[g.index])
        missing = max(wanted - held, 0)
        return min(1, missing) if g.kind == "mamba" else missing

    def _need_first(self, g: Group, hits: list[Entry], total: int, tokens: int, cap: float) -> int:
        wanted, skipped = int(min(-(-tokens // g.b), cap)), g.skipped(total)
        if g.kind == "mamba":
            return min(1, max(wanted - len(hits), 0)) + sum(h is not None and h.refs == 0 for h in hits)
        idle = sum(h is not None and h.refs == 0 for h in hits[skipped:])
        return max(wanted - max(skipped, len(hits)), 0) + idle

    def _retire(self, r: Request, n: int) -> None:
        table = self.tables[r.id]
        for g in self.groups:
            entries, gone = table.blocks[g.index], []
            for i in range(min(g.skipped(n), len(entries)) - 1, table.retired[g.index] - 1, -1):
                if entries[i] is not None:
                    gone.append(entries[i])
                    entries[i] = None
                elif g.kind != "mamba":
                    break
            self._give_back(gone)
            table.retired[g.index] = max(table.retired[g.index], min(g.skipped(n), len(entries)))
            last = table.last[g.index]
            if g.kind == "mamba" and 0 <= last < -(-n // g.b) - 1 and entries[last] is not None:
                self._give_back([entries[last]])
                entries[last] = None

    def _give_back(self, blocks: list[Entry]) -> None:
        """In this order."""
        self.pool.release([block for block in reversed(blocks) if block is not None])

    def _take(self, r: Request, tokens: int) -> None:
        table = self.tables[r.id]
        for g in self.groups:
            entries, wanted = table.blocks[g.index], -(-tokens // g.b)
            if wanted <= len(entries):
                continue
            if g.kind == "mamba":
                if entries:
                    table.last[g.index] = len(entries) - 1
                entries += [None] * (wanted - 1 - len(entries))
            entries += self.pool.allocate(wanted - len(entries))

    def _enter(self, r: Request, tokens: int) -> None:
        tokens = tokens // self.S * self.S
        self.ever_entered.update(r.keys[: tokens // self.S])
        if not self.caching:
            return
        table, keys = self.tables[r.id], r.group_keys  # type: ignore[attr-defined]
        for g in self.groups:
            entries = table.blocks[g.index]
            for i in range(table.hashed[g.index], tokens // g.b):
                if entries[i] is not None and self._kept(g, i, r):
                    self.pool.enter(entries, i, keys[g.index][i], 0)  # type: ignore[arg-type]
                    self.ever_hashed[keys[g.index][i]] = [Block()]
                    if g.kind == "mamba":
                        self.hashed_now.add(entries[i])  # type: ignore[arg-type]
            table.hashed[g.index] = max(table.hashed[g.index], tokens // g.b)

    def _kept(self, g: Group, i: int, r: Request) -> bool:
        """Whether block i of a group is hashed."""
        end = (i + 1) * g.b
        if g.kind in ("full", "chunked_local"):
            return True
        reach = g.need * g.b
        if self.retention is None and g.kind == "mamba":
            return True
        every = self.S if self.retention is None else self.retention
        if every and -end % every < reach:
            return True
        if self.retention is None:
            return False
        return any(
            b // self.S * self.S - reach < end <= b // self.S * self.S for b in (r.prompt - 1, self.junction[r.id])
        )

    def _release(self, r: Request) -> None:
        for entries in self.tables[r.id].blocks:
            self._give_back([block for block in reversed(entries) if block is not None])
        self.tables[r.id] = Tables(self.groups)

    # ---- admission ------------------------------------------------------------------------------------------------
    def _admit(self, r: Request, budget: int, chunk_limit: int) -> int:
        self.lookups += 1
        total, hits = self._lookup(r)
        if self.deferring and r.known - total > 1:
            return 0
        n = self._cut(r, total, min(r.known - total, chunk_limit, budget), budget)
        if n == 0:
            return 0
        if any(g.kind == "mamba" and h and h[-1] in self.hashed_now for g, h in zip(self.groups, hits, strict=True)):
            return 0
        tests = [(total + n, math.inf)]
        if self.reserve_full:
            tests.append((r.known, 0))
        for tokens, _cap in tests:
            caps = [
                math.inf if _cap or g.kind == "mamba" else g.cap(self.cap_tokens, self.max_model_len)
                for g in self.groups
            ]
            need = sum(
                self._need_first(g, h, total, tokens, cap) for g, h, cap in zip(self.groups, hits, caps, strict=True)
            )
            if need + self._reserve() > self.pool.available():
                return 0
        if not r.cached:
            r.ceiling = self._ceiling_above(r, total)
            kept = self._combine(r, self.ever_hashed)[0] if self.caching else 0
            self.lost_to_windows[r.id] = max(0, r.ceiling - max(total, kept))
        self.admissions += 1
        r.cached.append(total)
        table, r.computed = self.tables[r.id], total
        for g, found in zip(self.groups, hits, strict=True):
            skipped = 0 if g.kind == "mamba" else min(g.skipped(total), len(found))
            entries: list[Entry] = [*([None] * skipped), *found[skipped:]]
            self.pool.touch([block for block in entries if block is not None])
            table.blocks[g.index] = entries
            table.hashed[g.index] = len(entries)
        self._take(r, total + n)
        self._enter(r, min(total + n, self._tokens_known(r)))
        return n

    def _ceiling_above(self, r: Request, hit: int) -> int:
        """Tokens hit had every layer kept everything for ever; no less than the hit."""
        blocks = hit // self.S
        while blocks < (r.known - 1) // self.S and r.keys[blocks] in self.ever_entered:
            blocks += 1
        return blocks * self.S

    def _lookup(self, r: Request) -> tuple[int, list[list[Entry]]]:
        """(hit tokens, entries of every group up to there); the junction is told to the request."""
        if not self.caching:
            return 0, [[] for _ in self.groups]
        hit, longest, hits = self._combine(r, self.pool.cached)
        if len(self.groups) > 1:
            self.junction[r.id] = longest if longest > hit else 0
        return hit, hits

    def _combine(self, r: Request, content: dict[Any, list[Block]]) -> tuple[int, int, list[list[Entry]]]:
        """(hit tokens, longest of any kind, entries) of what the groups find in a content."""
        kinds: dict[tuple, list[Group]] = {}
        for g in sorted(self.groups, key=lambda g: g.kind != "full"):
            kinds.setdefault(g.spec, []).append(g)
        hit = r.known - 1
        hits: list[list[Entry]] = [[] for _ in self.groups]
        longest, looked = 0, set()
        while True:
            before = hit
            for spec, groups in kinds.items():
                if spec[0] == "full" and spec in looked:
                    continue
                looked.add(spec)
                found = self._find(r, groups, hit, content)
                for g, entries in zip(groups, found, strict=True):
                    hits[g.index] = entries
                hit = len(found[0]) * spec[1]
                longest = max(longest, hit)
            one_round = len(kinds) == 1 or (len(kinds) == 2 and any(spec[0] == "full" for spec in kinds))
            if one_round or hit == before:
                break
        for g in self.groups:
            del hits[g.index][-(-hit // g.b) :]
        return hit, longest, hits

    def _find(self, r: Request, groups: list[Group], limit: int, content: dict[Any, list[Block]]) -> list[list[Entry]]:
        g, n = groups[0], limit // groups[0].b
        aligned = self.S if len(self.groups) > 1 else g.b

        def cached(i: int) -> list[Block] | None:
            keys = [r.group_keys[o.index][i] for o in groups]  # type: ignore[attr-defined]
            return [content[key][0] for key in keys] if all(key in content for key in keys) else None

        columns: list[list[Block] | None] = []
        if g.kind in ("full", "chunked_local"):
            start = limit // g.w * g.w // g.b if g.kind == "chunked_local" else 0
            columns = [None] * start
            while len(columns) < n and (found := cached(len(columns))):
                columns.append(found)
            while g.kind == "full" and len(columns) * g.b % aligned:
                columns.pop()
        else:
            columns = [None] * n
            run = 0
            for i in range(n - 1, -1, -1):
                found = cached(i)
                if not found:
                    run = 0
                elif run or (i + 1) * g.b % aligned == 0:
                    columns[i] = found
                    run += 1
                    if run >= g.need:
                        del columns[i + run :]
                        columns[:i] = [None] * i
                        break
            else:
                del columns[run:]
                while g.kind != "mamba" and len(columns) * g.b % aligned:
                    columns.pop()
                if g.kind == "mamba":
                    columns = []
        return [[None if c is None else c[k] for c in columns] for k in range(len(groups))]

    # ---- in the recorded form -------------------------------------------------------------------------------------
    def final_free_queue(self) -> list[Any]:
        """Entries [request, tokens that the hash covers, group] with several groups, else [request, block index]."""
        names: dict[Any, list[int]] = {}
        several = len(self.groups) > 1
        for r in self.requests:
            for g in self.groups:
                for i, key in enumerate(r.group_keys[g.index]):  # type: ignore[attr-defined]
                    names.setdefault(key, [r.id, (i + 1) * g.b, g.index] if several else [r.id, i])
        return [None if block.key is None else names[block.key] for block in self.pool.free]


def differences(case: dict[str, Any]) -> list[str]:
    return reference_vllm.differences(case, Engine)


def main(paths: list[str]) -> int:
    wrong = 0
    for path in paths:
        case = read_case(Path(path))
        if case["engine"] != "vllm":
            continue
        found = differences(case)
        wrong += bool(found)
        print(f"{case['case']}: {'; '.join(found)[:400] or 'equal'}")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
