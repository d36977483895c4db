"""What joins the GPUs of a replica, and what an all-reduce over it takes.

The one idea: latency and bytes over the link named, two all-reduces a layer; never a share of some other efficiency.
Against the tables of eight GPUs (2, 4 and 8 of each, up to 64 MB) the form errs 22 % on average over NVLink, 18 % over
PCIe 5 and 33 % over PCIe 4, where hosts without peer-to-peer copies take up to six times as long.

    python -c "from calibrate.link import all_reduce_s; print(all_reduce_s('pcie4', 32e9, 2, 1e6))"
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workloads.errors import InputError

PCIE = {"pcie5": 64e9, "pcie4": 32e9, "pcie3": 16e9}
"""Bytes a second and direction of 16 lanes."""
NONE = "none"
LINKS = ("nvlink", *PCIE, NONE)
"""nvlink: the GPU's own, whatever its maker calls it. none: what goes between GPUs takes no time."""
ERROR = {"nvlink": 0.22, "pcie5": 0.18, "pcie4": 0.33, "pcie3": 0.33, NONE: 0.0}
"""Mean error against measured all-reduces; PCIe 3 was not measured."""


def bandwidth_of(link: str, own: str, own_bandwidth: float, gpu: str) -> float:
    """Bytes a second and direction of a link on a GPU whose own is `own`. InputError for one that it does not have."""
    if link == own:
        return own_bandwidth
    if link == "nvlink":
        raise InputError(f"[hardware] link = 'nvlink': {gpu} has none; expected one of {', '.join(LINKS[1:])}")
    return PCIE.get(link, own_bandwidth)


def all_reduce_s(link: str, bandwidth: float, gpus: int, size: Any) -> Any:
    """Seconds of one all-reduce of `size` bytes (scalar or array) among `gpus`: a latency, and each byte there and
    back but for one share. NVLink reaches 65 % of its rate, PCIe 60 % between two GPUs and a fifth less with
    every doubling, where switches and the host are shared."""
    if gpus < 2 or link == NONE:
        return np.zeros_like(np.asarray(size, dtype=float)) + 0.0
    doublings = np.log2(gpus) - 1.0
    latency, share = (5e-6 + 0.2e-6 * gpus, 0.65) if link == "nvlink" else (3e-6 * gpus, 0.6 * 0.8**doublings)
    return latency + 2.0 * (gpus - 1) / gpus * np.asarray(size, dtype=float) / (bandwidth * share)
