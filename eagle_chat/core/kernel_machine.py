"""What kernels are shaped by, and what the one of a layer is called with."""

from __future__ import annotations

from dataclasses import dataclass

UNROLLED = 4
"""Vectors of a head that are summed at a time; its size is a multiple of so many."""
LAYER = (
    "input", "x", "y", "cos", "sin", "mask", "keys", "values",
    "scores", "normed", "qkv", "attended", "hidden", "both", "inner",
    "rows", "start", "capacity", "threads",
    "input_norm", "qkv_weight", "qkv_bias", "out_weight", "out_bias", "mlp_norm", "up_weight", "up_bias", "down_weight",
    "down_bias", "depth", "hidden_size", "heads", "kv_heads", "head_size", "inner_size", "epsilon", "scale",
)  # fmt: skip
"""Numbers of 64 bits that the layer is called with. `input` [rows, depth] is normed where there is an `input_norm`, and
`x` [rows, hidden size] is the residual; `epsilon` and `scale` are the bits of a float32."""
SIZES = {
    "rows", "start", "capacity", "threads", "depth", "hidden_size", "heads", "kv_heads", "head_size", "inner_size",
    "epsilon", "scale",
}  # fmt: skip
POINTERS = set(LAYER) - SIZES
"""Which of them are addresses."""


@dataclass(frozen=True)
class Machine:
    """What the kernels are shaped by: numbers in a vector register, and how many such registers there are."""

    lanes: int
    registers: int

    @property
    def vectors(self) -> int:
        """Registers of a panel: two, or four where they are short."""
        return 4 if self.lanes == 4 else 2

    @property
    def panel(self) -> int:
        """Outputs of a panel."""
        return self.lanes * self.vectors

    @property
    def rows(self) -> int:
        """Most rows of a block: their sums, the weights and one broadcast input must fit in the registers."""
        return (self.registers - 1 - self.vectors) // self.vectors
