"""Compiles the kernels ahead of time for a named target, without a GPU, and reads what the compiler made.

    python -m tests.kernels.aot sm_90        # a table of every config row of one target

The launchers are run on `meta` tensors with the kernel replaced by a recorder, so a compilation gets exactly the
arguments, constants and divisibility attributes that a launch on a GPU would give it. Results are cached in
.cache/kernels by source, case and triton version."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.configs import Config, config_for
from kernels.plan import plan_decode, plan_prefill

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "kernels"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")

# What a compilation depends on besides its case and config: launchers, kernels and this file. Read when this module is
# imported, just before the kernels are, so that an edit during a run does not file old results under new text.
_UNRELATED = ("checks.py", "rates.py", "configs.py", "reference.py", "__init__.py")
SOURCES = "".join(
    p.read_text() for p in (*sorted((ROOT / "kernels").glob("*.py")), Path(__file__)) if p.name not in _UNRELATED
)


@dataclass(frozen=True)
class Case:
    """One compilation. op: prefill, decode, merge, rope or moe. `config` None: the table's row."""

    op: str
    target: str
    dtype: str = "bfloat16"
    head_dim: int = 128
    block_size: int = 16
    group: int = 4
    kv_heads: int = 8
    config: Config | None = None

    @property
    def id(self) -> str:
        c = f"-{self.config.as_text().replace(' ', '-')}" if self.config else ""
        return (
            f"{self.target}-{self.op}-{self.dtype}-d{self.head_dim}-b{self.block_size}-g{self.group}x{self.kv_heads}{c}"
        )

    def resolved(self) -> Config | None:
        """The tile in force; merge and rope have none."""
        named = (
            config_for(self.target, self.op, 0 if self.op == "moe" else self.head_dim)
            if self.op in ("prefill", "decode", "moe")
            else None
        )
        return self.config or named


@dataclass(frozen=True)
class Compiled:
    registers: int
    shared: int  # bytes of shared memory of a program
    spills: int  # LDL and STL instructions, or spilled vector registers on gfx942
    stack: int  # bytes
    tensor_core: str  # the widest matrix instruction found, or ""
    seconds: float  # processor time of the compilation


class Recorder:
    """Stands in for a kernel: keeps the arguments of its launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.call: tuple | None = None

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            self.call = (args, kwargs)

        return launch


@contextmanager
def recorded(module: Any, name: str):
    kernel = getattr(module, name)
    recorder = Recorder(kernel)
    setattr(module, name, recorder)
    try:
        yield recorder
    finally:
        setattr(module, name, kernel)


def record(case: Case) -> Recorder:
    """Run the launcher of `case` on meta tensors; the recorder holds the kernel and its arguments."""
    import torch

    from kernels import attention, decode, moe, prefill, rope

    def meta(*shape, dtype=None):
        return torch.empty(shape, dtype=dtype or getattr(torch, case.dtype), device="meta")

    heads, kv, d = case.group * case.kv_heads, case.kv_heads, case.head_dim
    qkv = meta(96, (heads + 2 * kv) * d)  # q, k and v are views of one projection, as in a model
    q = qkv[:, : heads * d].view(96, heads, d)
    k_cache, v_cache = meta(1024, case.block_size, kv, d), meta(1024, case.block_size, kv, d)
    if case.op == "moe":
        with recorded(moe, "grouped_gemm_kernel") as kernel:
            config = case.config or config_for(case.target, "moe")
            moe.grouped_gemm(meta(96, 4096), meta(64, 1024, 4096), meta(65, dtype=torch.int32), config=config)
        return kernel
    if case.op == "rope":
        k, v = (qkv[:, (heads + i * kv) * d : (heads + (i + 1) * kv) * d].view(96, kv, d) for i in range(2))
        table, at = meta(4096, d // 2, dtype=torch.float32), meta(96, dtype=torch.int64)
        with recorded(rope, "rope_kernel") as kernel:
            rope.rope_and_write(q, k, v, k_cache, v_cache, table, table, at, at)
        return kernel
    name = "prefill" if case.op == "prefill" else "decode"
    config = case.config or config_for(case.target, name, d)
    kwargs = {"group": case.group, "kv_heads": kv, "config": config, "sms": 132, "splits": 2}
    with recorded(attention, "attention_kernel") as kernel, recorded(attention, "merge_kernel") as merge:
        if name == "prefill":
            plan = plan_prefill([96], [500], **kwargs)
            prefill.prefill_attention(
                q, k_cache, v_cache, meta(1, 64, dtype=torch.int32), attention.Work(plan, "meta", d)
            )
        else:
            plan = plan_decode([500] * 96, **kwargs)
            decode.decode_attention(
                q, k_cache, v_cache, meta(96, 64, dtype=torch.int32), attention.Work(plan, "meta", d)
            )
    return merge if case.op == "merge" else kernel


def specialise(kernel: Any, args: tuple, kwargs: dict) -> tuple[dict, dict, dict, dict]:
    """(signature, constants, attributes, options) that triton's launcher derives from a call."""
    import torch

    names = kernel.arg_names
    values = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in names}
    constexpr = {p.name for p in kernel.params if p.is_constexpr}
    general = {p.name for p in kernel.params if p.do_not_specialize}
    pointer = {
        torch.float32: "*fp32",
        torch.float16: "*fp16",
        torch.bfloat16: "*bf16",
        torch.int32: "*i32",
        torch.int64: "*i64",
    }
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(names):
        value = values[name]
        if name in constexpr or (isinstance(value, int) and value == 1 and name not in general):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = pointer[value.dtype]
            if value.storage_offset() * value.element_size() % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and name not in general:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    return signature, constants, attributes, {k: v for k, v in kwargs.items() if k not in names}


def compile_case(case: Case) -> Compiled:
    """Compile, or read from the cache."""
    import triton

    config = case.resolved()
    text = json.dumps([asdict(case), config and asdict(config), triton.__version__, SOURCES], sort_keys=True)
    path = CACHE / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    if path.is_file():
        return Compiled(**json.loads(path.read_text()))
    result = _compile(case)
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(result)))
    partial.replace(path)
    return result


def _compile(case: Case) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    assert not triton.knobs.runtime.interpret, "compiling needs a process without TRITON_INTERPRET"
    amd = case.target.startswith("gfx")
    target = GPUTarget("hip", case.target, 64) if amd else GPUTarget("cuda", int(case.target.removeprefix("sm_")), 32)
    recorder = record(case)
    assert recorder.call is not None, f"{case.id}: the launcher did not launch"
    signature, constants, attributes, options = specialise(recorder.kernel, *recorder.call)
    source = triton.compiler.ASTSource(recorder.kernel, signature, constants, attributes)
    before = os.times()
    with tempfile.TemporaryDirectory() as scratch, triton.knobs.cache.scope():
        triton.knobs.cache.dir = scratch
        compiled = triton.compile(source, target=target, options=options)
        after = os.times()
        seconds = (after.user + after.children_user) - (before.user + before.children_user)
        shared = compiled.metadata.shared
        if amd:
            return _read_amd(compiled.asm["amdgcn"], shared, seconds)
        return _read_cuda(compiled.asm["cubin"], shared, seconds)


def _read_cuda(cubin: bytes, shared: int, seconds: float) -> Compiled:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        sass = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage)[1]) for key in ("REG", "STACK"))
    spills = len(re.findall(r"\b(?:LDL|STL)\b", sass))
    found = re.findall(r"\b((?:HGMMA|UTC\w*MMA|HMMA)[\w.]*)", sass)
    return Compiled(registers, shared, spills, stack, min(found, key=_preference, default=""), seconds)


def _preference(instruction: str) -> int:
    return 2 if instruction.startswith("HMMA") else 1


def _read_amd(assembly: str, shared: int, seconds: float) -> Compiled:
    def last(key: str) -> int:
        return int(re.search(rf"\.{key}:\s+(\d+)", assembly)[1])

    found = re.findall(r"\b(v_mfma_\w+)", assembly)
    # Scalar registers spill into lanes of a vector register, not to memory, so only vector spills count.
    return Compiled(
        last("vgpr_count"),
        shared,
        last("vgpr_spill_count"),
        last("private_segment_fixed_size"),
        (found or [""])[0],
        seconds,
    )


def table(target: str, dtype: str = "bfloat16") -> None:
    print(f"{'case':58s} {'config':18s} regs  shared spills stack instruction        s")
    for op, head_dim in [(op, d) for op in ("prefill", "decode", "merge", "rope") for d in (64, 128, 256)] + [
        ("moe", 128)
    ]:
        case = Case(op, target, dtype, head_dim)
        config = case.resolved()
        r = compile_case(case)
        print(
            f"{case.id:58s} {config.as_text() if config else '':18s} {r.registers:4d} {r.shared:7d} {r.spills:6d}"
            f" {r.stack:5d} {r.tensor_core:28s} {r.seconds:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or TARGETS:
        table(name)
