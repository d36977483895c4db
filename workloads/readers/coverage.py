"""How many tokens a trace's block ids stand for, and whether they cover a prompt's ragged end.

The one idea: a file has one rule for all of its rows: a partial last block has an id (ceil of input / block) or has
none (floor). Where no row's count breaks a rule, that rule holds; where both are broken, the sizes that would fit all
rows follow from the counts.

    >>> fitting(np.array([1000, 1200]), np.array([8, 10]))
    (128, 'ceil')
"""

from __future__ import annotations

import numpy as np

from workloads.readers.common import Rows

CEIL, FLOOR = "ceil", "floor"


def covered(
    rows: Rows,
    prompt: np.ndarray,
    blocks: np.ndarray,
    block_tokens: int,
    names: tuple[str, str] = ("hash_ids", "input_length"),
) -> str:
    """CEIL or FLOOR, and a note of it where it is not ceil; InputError when neither holds for all rows, naming the
    first row that is off and the block size that would fit them all.

    prompt, blocks: int64 [n], tokens and ids of each kept row; a row without ids shares nothing and breaks no rule.
    names: what the file calls ids and tokens."""
    whole, ragged = prompt // block_tokens, prompt % block_tokens > 0
    off_ceil = (blocks > 0) & (blocks != whole + ragged)
    if not off_ceil.any():
        return CEIL
    off_floor = (blocks > 0) & (blocks != whole)
    if not off_floor.any():
        rows.note(
            f"{names[0]}: none for the ragged end of a prompt (input // {block_tokens} ids in every row): the last"
            f" input % {block_tokens} tokens are private"
        )
        return FLOOR
    _refuse(rows, prompt, blocks, block_tokens, int(np.flatnonzero(off_ceil)[0]), names)
    raise AssertionError("refused above")


def _refuse(
    rows: Rows, prompt: np.ndarray, blocks: np.ndarray, block_tokens: int, at: int, names: tuple[str, str]
) -> None:
    rows.fail(
        names[0],
        f"{blocks[at]} ids",
        f"{-(-prompt[at] // block_tokens)} ids of {block_tokens} tokens to cover {names[1]} ="
        f" {prompt[at]}{hint(prompt, blocks)}",
        rows.number[at],
    )


def hint(prompt: np.ndarray, blocks: np.ndarray) -> str:
    """What to add to a refusal: the block size that explains the rows that have ids. prompt, blocks: int64 [n]."""
    has = blocks > 0
    found = fitting(prompt[has], blocks[has]) if has.any() else None
    if found is None:
        return (
            "; no one block size explains all rows (format = 'table' without prefix_ids reads lengths and times alone:"
            " nothing is shared then)"
        )
    size, rule = found
    how = "cover all rows" if rule == CEIL else "fit all rows but their ragged ends"
    return f"; blocks of {size} would {how}: set block_tokens = {size}"


def fitting(prompt: np.ndarray, blocks: np.ndarray) -> tuple[int, str] | None:
    """(tokens per block, CEIL or FLOOR) that explains every row, the roundest such size; None when there is none.

    prompt, blocks: int64 [n], all at least 1."""
    ceil = _roundest(int((-(-prompt // blocks)).max()), int(_below(prompt, blocks - 1).min()))
    if ceil is not None:
        return ceil, CEIL
    floor = _roundest(int((prompt // (blocks + 1)).max()) + 1, int((prompt // blocks).min()))
    return None if floor is None else (floor, FLOOR)


def _below(prompt: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """The largest size of which `blocks` blocks are still too few for the prompt; the prompt's own for none."""
    return np.where(blocks > 0, -(-prompt // np.maximum(blocks, 1)) - 1, prompt)


def _roundest(low: int, high: int) -> int | None:
    """The number in [low, high] with the most factors of 2, if it is a block's size: a power of 2 or a multiple of
    16."""
    if low > high or high < 1:
        return None
    low, step = max(low, 1), 1
    while -(-low // (2 * step)) * 2 * step <= high:
        step *= 2
    size = -(-low // step) * step
    return size if step >= 16 or size == step else None
