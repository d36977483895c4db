"""How many bytes a weight takes, by part of a model: what a checkpoint's own quantization says, or a type by name.

`calibrate.quantization` reads them from a checkpoint's own quantization_config.

The one idea: quantized checkpoints leave parts in 16 bits (embeddings, LM head, router, norms always; attention or
shared experts often), so bytes are kept per part and never for the model as a whole.

    >>> of_dtype("nvfp4").experts
    0.5625
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.errors import InputError

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
"""Types of a KV cache, and of a whole model's weights."""
WEIGHT_BYTES: dict[str, float] = {
    **DTYPE_BYTES,
    "fp8_block": 1,  # one fp32 scale per 128 x 128 block
    "int8": 1,
    "int4": 0.5 + 2 / 128,  # a 16-bit scale per 128 weights
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit scale per 32 weights: 4.25 bits
    "nvfp4": 0.5 + 1 / 16,  # an fp8 scale per 16 weights: 4.5 bits
}
PARTS = ("attention", "linear", "mlp", "experts", "shared")
"""What a quantization may take or leave: attention projections, linear-attention projections, dense feed-forward,
routed experts, shared experts."""
FAMILY = {"fp8_block": "fp8"}
"""Types that a scenario does not tell apart."""


@dataclass(frozen=True)
class Precision:
    """Bytes of a weight in each part. name: the type of the quantized parts, as an operator table calls it."""

    name: str
    attention: float
    linear: float
    mlp: float
    experts: float
    shared: float
    wide: int = 2  #: embeddings, LM head, router, norms
    kv: str | None = None  #: KV type that the checkpoint asks for
    head: float | None = None  #: of an LM head that is quantized too; default: wide
    others: tuple[tuple[str, str], ...] = ()  #: parts whose layers are mostly in another type than `name`, and it

    @property
    def dtype(self) -> str:
        """The type as a scenario names it."""
        return FAMILY.get(self.name, self.name)

    def type_of(self, part: str) -> str:
        """The type of a part: the quantized one, one of its own, or bf16 where it was left alone."""
        if part in (own := dict(self.others)):
            return own[part]
        return self.name if getattr(self, part) != self.wide or self.name in DTYPE_BYTES else "bf16"


def of_dtype(dtype: str) -> Precision:
    """All weights in one type; mxfp4 is a type of routed experts only. InputError for a type that is not understood."""
    if dtype not in WEIGHT_BYTES:
        raise InputError(f"dtype {dtype!r}: expected one of {', '.join(WEIGHT_BYTES)}")
    size, wide = WEIGHT_BYTES[dtype], 4 if dtype == "fp32" else 2
    rest = wide if dtype == "mxfp4" else size
    return Precision(dtype, rest, rest, rest, size, rest, wide)
