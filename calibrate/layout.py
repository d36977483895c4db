"""How a model is spread over the GPUs of a replica: tensor, expert and pipeline parallel, and attention per data rank.

>>> resolve_model("deepseek-v3").weights("fp8", Layout(tensor_parallel=8))["experts"]
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """One replica. tensor_parallel splits every layer; data_parallel gives attention and dense layers a copy per data
    rank while experts are spread over all of them; pipeline_parallel deals out the layers. expert_parallel: whole
    experts per GPU instead of a slice of each (bytes are the same, kernels are not)."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def expert_ranks(self) -> int:
        """GPUs that share the experts of a layer."""
        return self.tensor_parallel * self.data_parallel
