"""Tile sizes per GPU generation and head size: an explicit table, no tuning at import.

    config_for("sm_90", "prefill", 128)   ->   Config(block_m=128, block_n=64, warps=8, stages=3, per_sm=1)

A generation without a row of its own uses the newest older one it can run: sm_86, sm_89 and sm_120 run sm_80's rows,
which stay under their 99 KiB of shared memory. Every row is compiled for its target by the test suite: no spills,
shared memory within the limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """One kernel's tile: block_m rows (queries x heads of a KV head, or tokens), block_n keys (or columns), block_k
    depth (GEMM only)."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    per_sm: int = 1  # programs that fit one multiprocessor: what the split of work counts on
    block_k: int = 0

    def as_text(self) -> str:
        k = f"x{self.block_k}" if self.block_k else ""
        return f"{self.block_m}x{self.block_n}{k} w{self.warps} s{self.stages}"


HEAD_DIMS = (64, 128, 256)
BLOCK_SIZES = (16, 32, 64)
SHARED_LIMIT = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}

TABLE: dict[str, dict[tuple[str, int], Config]] = {
    "sm_80": {
        ("prefill", 64): Config(128, 64, 8, 3),
        ("prefill", 128): Config(128, 32, 8, 3),
        ("prefill", 256): Config(64, 32, 8, 2),
        ("decode", 64): Config(16, 64, 4, 4, per_sm=1),
        ("decode", 128): Config(16, 32, 4, 3, per_sm=2),
        ("decode", 256): Config(16, 32, 4, 2, per_sm=2),
        ("moe", 0): Config(64, 128, 4, 3, block_k=32),
    },
    "sm_90": {
        ("prefill", 64): Config(128, 64, 8, 3, per_sm=2),
        ("prefill", 128): Config(128, 64, 8, 3),
        ("prefill", 256): Config(128, 32, 8, 2),
        ("decode", 64): Config(16, 128, 4, 4, per_sm=2),
        ("decode", 128): Config(16, 64, 4, 4, per_sm=2),
        ("decode", 256): Config(16, 32, 4, 4, per_sm=2),
        ("moe", 0): Config(128, 128, 8, 4, block_k=64),
    },
    "sm_100": {
        ("prefill", 64): Config(128, 64, 8, 3),
        ("prefill", 128): Config(128, 64, 8, 3),
        ("prefill", 256): Config(128, 32, 8, 2),
        ("decode", 64): Config(16, 128, 4, 4, per_sm=2),
        ("decode", 128): Config(16, 64, 4, 4, per_sm=2),
        ("decode", 256): Config(16, 32, 4, 4, per_sm=2),
        ("moe", 0): Config(128, 128, 8, 4, block_k=64),
    },
    "gfx942": {
        ("prefill", 64): Config(128, 64, 4, 1, per_sm=2),
        ("prefill", 128): Config(128, 64, 4, 1),
        ("prefill", 256): Config(64, 32, 4, 1),
        ("decode", 64): Config(16, 64, 4, 2, per_sm=2),
        ("decode", 128): Config(16, 64, 4, 2, per_sm=2),
        ("decode", 256): Config(16, 32, 4, 2, per_sm=2),
        ("moe", 0): Config(128, 128, 8, 2, block_k=64),
    },
    # Tiles for the interpreter: small enough that a short context spans several of them.
    "interpreter": {
        **{("prefill", d): Config(32, 32, 4, 1) for d in HEAD_DIMS},
        **{("decode", d): Config(16, 32, 4, 1) for d in HEAD_DIMS},
        ("moe", 0): Config(32, 32, 4, 1, block_k=32),
    },
}

# Tiles worth timing beside the table's on a GPU (python -m kernels.rates --candidates); none of them spills.
CANDIDATES: dict[str, dict[tuple[str, int], list[Config]]] = {
    "sm_90": {
        ("prefill", 128): [
            Config(128, 64, 8, 2),
            Config(128, 64, 8, 4),
            Config(128, 32, 8, 4),
            Config(64, 64, 4, 3, per_sm=2),
        ],
        ("decode", 128): [Config(16, 64, 4, 3, per_sm=3), Config(16, 32, 4, 4, per_sm=4), Config(16, 128, 8, 3)],
    },
    "interpreter": {("prefill", 128): [Config(64, 32, 4, 1)]},
}


def config_for(arch: str, op: str, head_dim: int = 0) -> Config:
    """The tile of `op` ("prefill", "decode" or "moe") on `arch`; a KeyError's message names what the table has."""
    rows = TABLE.get(arch)
    if rows is None:
        raise KeyError(
            f"no kernel config for {arch}: the table has {', '.join(a for a in TABLE if a != 'interpreter')}"
        )
    if (op, head_dim) not in rows:
        raise KeyError(
            f"no {op} config for head size {head_dim} on {arch}: head sizes are {', '.join(map(str, HEAD_DIMS))}"
        )
    return rows[op, head_dim]


def cuda_arch(major: int, minor: int) -> str:
    """The table row that a CUDA compute capability runs."""
    if major in (9, 10):
        return f"sm_{major}0"
    if major in (8, 11, 12):
        return "sm_80"
    raise KeyError(f"compute capability {major}.{minor} is not supported: bf16 tensor cores need 8.0 or newer")
