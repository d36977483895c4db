"""An eviction policy of your own, with its test: copy this file, rename the class, change the rule.

The rule here: what only long prompts have used goes first (a document read once should not push out conversations),
then least recently used. A policy sets `run.state` on what happens to blocks and says with `key` which leaf goes first;
sim/kvcache/policies/base.py describes every hook.

    $ python examples/my_policy.py
    $ cd examples && kvcast run demo.toml --set cache.policy=my_policy:LongPromptsFirst --set cache.policy_params.long_tokens=8000
    $ python -m pytest examples/my_policy.py
"""  # noqa: E501

from __future__ import annotations

import numpy as np

from kvcast import Policy, Run, Workload, World, from_pieces, leaf_first


class LongPromptsFirst(Policy):
    """Leaves only prompts above `long_tokens` have used go first, then the least recently used."""

    def __init__(self, world: World, long_tokens: int = 4000) -> None:  # parameters are keyword arguments with defaults
        super().__init__(world)
        self.long = world.workload.prompt_tokens > long_tokens

    def on_insert(self, run: Run, request) -> None:
        run.state = not self.long[request.id]  # True: used by a short prompt

    def on_hit(self, run: Run, request) -> None:
        run.state = run.state or not self.long[request.id]

    def key(self, run: Run):
        return run.state, run.released  # the smallest goes first: False before True, then the oldest release


def conversations_and_documents(rounds: int = 30) -> Workload:
    """Three chats of 1,600 tokens that come back every round, and a new document of 6,400 tokens in each."""
    prompts = []
    for i in range(rounds):
        prompts += [[(f"chat {c}", 0, 1600)] for c in range(3)] + [[(f"document {i}", 0, 6400)]]
    tree, leaf = from_pieces(prompts)
    tokens = np.array([pieces[0][2] for pieces in prompts])
    n = len(prompts)
    return Workload(
        tree=tree, leaf=leaf, arrival_s=np.arange(float(n)), prompt_tokens=tokens, output_tokens=np.ones(n, np.int64)
    )


def hit_blocks(policy: str) -> int:
    """In a cache of 600 blocks of 16 tokens, which holds a document (400) and two of the three chats (100 each)."""
    return leaf_first(conversations_and_documents(), policy, capacity_blocks=600, block_size=16).hit_blocks


def test_long_prompts_go_first() -> None:
    """Worked out by hand. A chat hits 99 of its 100 blocks: the last block of a prompt is never hit whole.

    LRU: a document drops the first chat, which drops the second when it comes back, which drops the third, which drops
    a part of the document: nothing is ever hit. Here a new document takes the place of the last one and of one chat,
    and the chat takes its own place back from the document: two chats hit in each of 29 rounds."""
    assert hit_blocks(f"{__name__}:LongPromptsFirst") == 29 * 2 * 99
    assert hit_blocks("lru") == 0


def main() -> None:
    for policy in ("lru", "lfu", f"{__name__}:LongPromptsFirst"):
        print(f"{policy}: {hit_blocks(policy):,} blocks hit")


if __name__ == "__main__":
    main()
