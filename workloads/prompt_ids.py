"""What prompts say, made up: symbols along each prompt's path in the prefix tree, as token ids or as words.

The one idea: a node of the tree, and a request's private tail, is one made-up text, the same wherever it is read, that
begins with its number among the texts that can stand in its place: two prompts part exactly where their paths do, as
long as no more texts follow one text than there are symbols.

    >>> prompts = Prompts(workload, symbols=31_000)
    >>> prompts.of(0)                                   # int64 [prompt_tokens[0]], the same in every run
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from workloads.columns import Workload
from workloads.errors import InputError

LOWEST_ID, HIGHEST_ID = 1_000, 31_999
"""Token ids that are plain text in the vocabularies in use: byte tokens and most control tokens lie below, and no
vocabulary of a served model is smaller."""
CHARACTERS_PER_TOKEN = 4  #: of a word without a tokenizer: a space and three letters
WORDS = re.findall(
    "[a-z]+",
    """
the and for are but not you all any can had her was one our out day get has him his how man new now old see two way who
boy did its let put say she too use dad mom act add age ago aid aim air arm art ask bad bag bar bed bet big bit box buy
car cat cup cut dog dry due ear eat egg end eye far fat few fit fix fly fun gas got guy hat hit hot ice ill job
key kid law lay led leg lie log lot low map may met mix net nor odd off oil per pay pet pop pot raw red rid row run sad
sat sea set sir sit six sky son sun tax tea ten tie tip top toy try wet why win won yes yet act
bat bus cap cow cry dig dot fan fee few gap hip hop ink ion jar jet joy lab lap lip mad mud nut pan pen pie pig pin
rat ray rib rod sin tag tap tin ton van via web wit bow bid ban bay bin bug cab cop dam den era fig fog fox fur gel gym
ham hay hen hub hug ivy jam jaw kit lad lid mat mob mug nap oak oar odd owl pad paw pea pit pub rag ram rim rub rug rye
""",
)
MOST_WORDS = 4096  #: of a tokenizer's vocabulary
MIXED = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)  #: splitmix64's constants


class Prompts:
    """The prompts of a workload as symbols 0 to `symbols` - 1."""

    def __init__(self, workload: Workload, symbols: int) -> None:
        self.workload, self.symbols = workload, symbols
        self._number, self._most = _numbers(workload)
        self.crowded = int((self._number >= symbols).sum())  #: texts that a first symbol does not tell apart
        self._of_node: dict[int, np.ndarray] = {}

    def of(self, r: int) -> np.ndarray:
        """int64 [prompt_tokens[r]]."""
        tree, prompt = self.workload.tree, int(self.workload.prompt_tokens[r])
        above = [(node, prompt - _begins(tree, node)) for node in path_of(self.workload, r)]
        parts = [self._node(node)[:length] for node, length in above if length > 0]
        beyond = prompt - int(tree.end[self.workload.leaf[r]])
        if beyond > 0:
            parts.append(self._text(len(tree) + r, beyond))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _node(self, node: int) -> np.ndarray:
        if node not in self._of_node:
            tree = self.workload.tree
            self._of_node[node] = self._text(node, int(tree.end[node]) - _begins(tree, node))
        return self._of_node[node]

    def _text(self, key: int, length: int) -> np.ndarray:
        """The symbols of one text; `key`: its node, or the number of nodes and the request whose tail it is."""
        with np.errstate(over="ignore"):
            x = (np.arange(1, length + 1, dtype=np.uint64) + np.uint64(key) * MIXED[1]) * MIXED[0]
            for shift, factor in ((30, MIXED[1]), (27, MIXED[2])):
                x = (x ^ (x >> np.uint64(shift))) * factor
            symbols = ((x ^ (x >> np.uint64(31))) % np.uint64(self.symbols)).astype(np.int64)
        number, most = int(self._number[key]), int(self._most[key])
        for at in range(length):
            symbols[at] = number % self.symbols
            number, most = number // self.symbols, most // self.symbols
            if not most:
                break
        return symbols


def path_of(workload: Workload, r: int) -> list[int]:
    """The nodes of a request's path, from the root's child to its leaf."""
    path, node = [], int(workload.leaf[r])
    while workload.tree.parent[node] >= 0:
        path.append(node)
        node = int(workload.tree.parent[node])
    return path[::-1]


def _begins(tree: Any, node: int) -> int:
    return int(tree.end[tree.parent[node]])


def _numbers(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """int64 [nodes + requests] each: a text's number among those that follow the same text, and the highest of them.
    All roots are one place: what tenants do not share must differ from its first token."""
    tree = workload.tree
    roots = tree.parent < 0
    place = np.where(roots, 0, np.arange(len(tree)))
    follows = np.concatenate((place[tree.parent], place[workload.leaf]))
    follows[: len(tree)][roots] = len(tree)  # no text, nor is the tail of a prompt that ends in the tree
    follows[len(tree) :][workload.prompt_tokens <= tree.end[workload.leaf]] = len(tree)
    order = np.argsort(follows, kind="stable")
    begin = np.searchsorted(follows[order], follows)
    number = np.empty(len(follows), np.int64)
    number[order] = np.arange(len(order))
    number -= begin
    number[follows == len(tree)] = 0
    return number, np.bincount(follows)[follows] - 1


def repeated_answers(workload: Workload) -> int:
    """Prompt tokens that no earlier prompt has but an earlier answer: a server that answers something else has not
    computed them. In the order of the rows."""
    tree, found = workload.tree, 0
    by_prompts, by_all = tree.start.copy(), tree.start.copy()  # up to where a node's tokens were in a prompt, in either
    for r in range(len(workload)):
        prompt, total = int(workload.prompt_tokens[r]), int(workload.prompt_tokens[r] + workload.output_tokens[r])
        for node in path_of(workload, r):
            end = min(int(tree.end[node]), prompt)
            found += max(min(end, int(by_all[node])) - max(int(by_prompts[node]), _begins(tree, node)), 0)
            by_prompts[node] = max(by_prompts[node], end)
            by_all[node] = max(by_all[node], min(int(tree.end[node]), total))
    return found


# ---- words ----


class Words:
    """Symbols as text. Without a tokenizer a word is a space and three letters; with one, only words that it takes as a
    token each, and every prompt is counted."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer
        three = list(dict.fromkeys(f" {word}" for word in WORDS))
        self.words: Sequence[str] = three if tokenizer is None else _single_tokens(tokenizer, three)

    def text(self, symbols: np.ndarray) -> str:
        """The text of a prompt. Raises InputError when the tokenizer counts other tokens than there are symbols."""
        text = "".join(map(self.words.__getitem__, symbols.tolist()))
        if self.tokenizer is not None:
            counted = _count(self.tokenizer, text)
            if counted != len(symbols):
                raise InputError(
                    f"--tokenizer: a prompt of {len(symbols)} words is {counted} tokens to it, expected as many: words"
                    " are no tokens of their own in this vocabulary"
                )
        return text


def _count(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def _single_tokens(tokenizer: Any, three: Sequence[str]) -> list[str]:
    vocabulary = (f" {tokenizer.decode([i]).strip()}" for i in range(min(tokenizer.get_vocab_size(), 60_000)))
    wanted = dict.fromkeys([*three, *(word for word in vocabulary if re.fullmatch(" [a-z]{2,9}", word))])
    found = []
    for word in wanted:
        if _count(tokenizer, word) == 1 and _count(tokenizer, word + word) == 2:
            found.append(word)
        if len(found) == MOST_WORDS:
            break
    if len(found) < 2:
        raise InputError("--tokenizer: it takes no English words as one token each, expected a tokenizer of a model")
    return found
