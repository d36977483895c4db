"""Which operators a device computes with: kvcast's Triton kernels on a GPU, plain torch elsewhere.

>>> backend_for("cpu").name
'torch'
"""

from __future__ import annotations

from calibrate.gpu.backend import TorchBackend


def backend_for(device: str) -> TorchBackend:
    """TritonBackend on a GPU, TorchBackend elsewhere."""
    if device == "cuda":
        from calibrate.gpu.triton_backend import TritonBackend

        return TritonBackend()
    return TorchBackend()
