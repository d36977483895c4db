"""How a model is spread over the GPUs of a replica: tensor, expert and pipeline parallel, and attention per data rank.

The one idea: four widths, as vLLM's flags mean them. A replica has tensor_parallel x attention_dp x pipeline_parallel
GPUs; whoever sizes, prices or counts them asks here.

>>> resolve_model("deepseek-v3").weights("fp8", Layout(tensor_parallel=8))["experts"]
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NODE_GPUS = 8
"""GPUs that are joined by one fast link, as the tables of collectives assume."""
COLLECTIVES, HIGH_THROUGHPUT, LOW_LATENCY = "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"
ALL_TO_ALL = (COLLECTIVES, HIGH_THROUGHPUT, LOW_LATENCY)
"""How tokens reach the experts of other data ranks, by vLLM's names."""


@dataclass(frozen=True)
class Layout:
    """One replica. tensor_parallel splits every layer; attention_dp gives attention and dense layers a copy per data
    rank, each with its own scheduler and KV, while experts are spread over all of them; pipeline_parallel deals out the
    layers. expert_parallel: whole experts per GPU instead of a slice of each (bytes are the same, kernels are not)."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    attention_dp: int = 1
    expert_parallel: bool = False
    all_to_all: str = COLLECTIVES

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.attention_dp

    @property
    def expert_ranks(self) -> int:
        """GPUs that share the experts of a layer."""
        return self.tensor_parallel * self.attention_dp

    @property
    def expert_slices(self) -> int:
        """Pieces that each expert is cut into."""
        return 1 if self.expert_parallel else self.expert_ranks

    @property
    def plain(self) -> bool:
        """Tensor parallel only, as every profile of a model is."""
        return self == Layout(self.tensor_parallel)

    @property
    def caution(self) -> str:
        """What a reader of a run at this layout must know; "" when nothing."""
        stages = self.pipeline_parallel
        if stages == 1:
            return ""
        most = (stages - 1) / (2 * stages - 1)
        return (
            f"pipeline_parallel {stages} is simulated in rounds, on the safe side: under a backlog of prompts prefill"
            f" throughput is understated by up to {most:.0%}, and a decode waits for the longest batch of its round"
        )

    def __str__(self) -> str:
        """tensor_parallel 2, attention_dp 4, expert_parallel."""
        parts = [f"tensor_parallel {self.tensor_parallel}"]
        parts += [f"attention_dp {self.attention_dp}"] if self.attention_dp > 1 else []
        parts += [f"pipeline_parallel {self.pipeline_parallel}"] if self.pipeline_parallel > 1 else []
        parts += ["expert_parallel"] if self.expert_parallel else []
        return ", ".join(parts)

    def as_document(self) -> dict[str, Any]:
        return asdict(self)


def as_layout(width: int | Layout) -> Layout:
    """A tensor-parallel width as the layout that it is."""
    return width if isinstance(width, Layout) else Layout(width)
