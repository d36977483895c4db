"""The one place that imports torch and triton, so that a missing one gives one clear line.

from kernels.backend import tl, torch, triton
"""

from kernels import KernelsUnavailableError

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as error:
    raise KernelsUnavailableError(
        f"kernels need torch and triton ({error.name or error} is missing): pip install 'torch>=2.6' 'triton>=3.6,<4'"
        " (triton: Linux on x86-64)"
    ) from error

INTERPRETED = bool(triton.knobs.runtime.interpret)
FUSE = {"enable_fp_fusion": True}  # multiply-add in one instruction: triton's default changes in 3.10, ours does not
DTYPES = (torch.float16, torch.bfloat16)

__all__ = ["DTYPES", "FUSE", "INTERPRETED", "check_dtype", "tl", "torch", "triton"]


def check_dtype(name: str, tensor: "torch.Tensor") -> None:
    """fp16 and bf16 on a GPU (fp32 would silently run in tf32); fp16 and fp32 in the interpreter, whose bf16 is
    silently wrong."""
    allowed = (torch.float16, torch.float32) if INTERPRETED else DTYPES
    if tensor.dtype not in allowed:
        names = " or ".join(str(d).removeprefix("torch.") for d in allowed)
        raise TypeError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, expected {names}")
