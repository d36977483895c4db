"""Sessions whose rows may hold the whole prompt or only what is new: which it is, and the prompts that come of it.

The one idea: the same fields are written both ways (Dynamo replays them as `mooncake` or `mooncake-delta`, AIPerf by
`context_mode`), so a file is asked: ids that repeat the row before say whole prompts; inputs that do not grow, with no
such ids, are a question, never a guess.

    >>> delta_paths([0, 0], [4190, 592], [592, 16])[1].tolist()      # the second prompt: 4,190 + 592 + 592 tokens
    [4190, 5374]
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from workloads.columns import PrefixTree
from workloads.errors import InputError
from workloads.prefix_tree import from_pieces
from workloads.readers.common import Rows

WHOLE, DELTA, DELTA_WITH_ANSWERS = "whole", "delta", "delta with answers"
TURNS = (WHOLE, DELTA)
"""What a scenario may say."""
CONTEXT_MODES = {
    "message_array_with_responses": WHOLE,
    "deltas_without_responses": DELTA,
    "deltas_with_responses": DELTA_WITH_ANSWERS,
}
"""What AIPerf's rows may say of themselves."""

Tokens = Sequence[int] | np.ndarray
Piece = tuple[Hashable, int, int]


def reading(
    rows: Rows,
    asked: str | None,
    stated: dict[str, str],
    session: np.ndarray,
    prompt: np.ndarray,
    output: np.ndarray,
    flat: np.ndarray,
    offsets: np.ndarray,
) -> str:
    """WHOLE, DELTA or DELTA_WITH_ANSWERS, with a note of why; InputError where the rows can mean either.

    asked: the scenario's `turns`; stated: what the rows say themselves (a value of CONTEXT_MODES), and by what.
    session, prompt, output: int64 [n], rows of a session in order; flat, offsets: the ids of all rows."""
    before = _row_before(session)
    later = np.flatnonzero(before >= 0)
    if asked is not None and asked not in TURNS:
        raise InputError(f"{rows.path}: turns = {asked!r}, expected {' or '.join(TURNS)}")
    if len(stated) > 1:
        raise InputError(f"{rows.path}: context_mode says both {' and '.join(sorted(stated))}, expected one of them")
    if asked is not None or stated or not len(later):
        mode = asked or next(iter(stated), WHOLE)
        if len(later):
            why = "as asked" if asked else f"as {stated[mode]}"
            rows.note(f"turns: {_WORDS[mode]}, {why} ({len(later)} rows follow another of their session)")
        return mode
    shrink = later[prompt[later] <= prompt[before[later]]]  # a conversation's next prompt holds the one before
    repeats = sum(_repeats(flat, offsets, r, int(before[r])) for r in later.tolist())
    if repeats * 2 >= len(later) or not len(shrink):
        why = f"{repeats} of {len(later)} later rows of a session begin with ids of the row before"
        if not repeats:
            why = (
                f"no input of {len(later)} later rows is as short as the row before; turns = 'delta' reads them as new"
            )
        rows.note(f"turns: {_WORDS[WHOLE]} ({why})")
        return WHOLE
    first = int(shrink[0])
    grown = delta_lengths(session, prompt, output)
    raise InputError(
        f"{rows.path}, row {rows.number[first]}: input_length = {prompt[first]} in a session whose row before has"
        f" {prompt[before[first]]}: as whole prompts the longest has {prompt.max():,} tokens and nothing of a"
        f" session is known to be shared, as what is new in a turn the longest has {grown.max():,} and each turn"
        " repeats the one before; expected turns = 'whole' or turns = 'delta' in [workload]"
    )


_WORDS = {
    WHOLE: "input_length is the whole prompt",
    DELTA: "input_length is what is new; a prompt is the turns and answers of its session before, and that",
    DELTA_WITH_ANSWERS: "input_length is what is new, earlier answers included; a prompt is the turns of its session"
    " before, and that",
}


def _row_before(session: np.ndarray) -> np.ndarray:
    """int64 [n]: the row of the same session before each row, or -1."""
    order = np.argsort(session, kind="stable")
    before = np.full(len(session), -1, np.int64)
    same = session[order][1:] == session[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    return before


def _repeats(flat: np.ndarray, offsets: np.ndarray, row: int, before: int) -> bool:
    """Whether a row's ids begin with an id of the row before it."""
    both = offsets[row] < offsets[row + 1] and offsets[before] < offsets[before + 1]
    return bool(both and flat[offsets[row]] == flat[offsets[before]])


def delta_lengths(session: Tokens, new: Tokens, output: Tokens, answers: bool = True) -> np.ndarray:
    """int64 [n]: prompts of rows that hold what is new, of sessions whose rows stand in order. answers: they join the
    history."""
    history: dict[int, int] = {}
    total = np.zeros(len(new), np.int64)
    for i, (s, tokens, answer) in enumerate(
        zip(*(np.asarray(c).tolist() for c in (session, new, output)), strict=True)
    ):
        total[i] = history.get(s, 0) + tokens
        history[s] = int(total[i]) + (answer if answers else 0)
    return total


def delta_paths(
    session: Tokens,
    new: Tokens,
    output: Tokens,
    ids: Sequence[Sequence[int]] | None = None,
    block_tokens: int = 0,
    answers: bool = True,
) -> tuple[tuple[PrefixTree, np.ndarray], np.ndarray]:
    """((tree, leaf int32 [n]), prompt tokens int64 [n]) of rows that hold what is new in a turn.

    ids: of the new text in blocks of `block_tokens`, the last one cut. They say what sessions share up to their first
    answer, behind which a session's text is its own."""
    history: dict[int, list[Piece]] = {}
    paths: list[list[Piece]] = []
    for i, (s, tokens, answer) in enumerate(
        zip(*(np.asarray(c).tolist() for c in (session, new, output)), strict=True)
    ):
        path = history.setdefault(s, [])
        named = ids is not None and len(ids[i]) > 0 and (not answers or not path)
        if named and ids is not None:
            path += _blocks(ids[i], tokens, block_tokens)
        else:
            _extend(path, s, tokens)
        if answers:
            _extend(path, s, answer)
        paths.append(list(path))
    return from_pieces(paths), delta_lengths(session, new, output, answers)


def _blocks(ids: Sequence[int], tokens: int, block_tokens: int) -> list[Piece]:
    """The pieces of a text of `tokens` tokens whose blocks have these ids; a ragged end without one is nobody's."""
    pieces: list[Piece] = [
        (("id", value, length), 0, length)
        for k, value in enumerate(ids)
        if (length := min(block_tokens, tokens - k * block_tokens)) > 0
    ]
    rest = tokens - len(ids) * block_tokens
    return [*pieces, (("rest", object()), 0, rest)] if rest > 0 else pieces


def _extend(path: list[Piece], session: int, tokens: int) -> None:
    """Let a path go on in its session's own text."""
    own = ("session", session)
    if path and path[-1][0] == own:
        path[-1] = (own, 0, path[-1][2] + tokens)
    else:
        path.append((own, 0, tokens))
