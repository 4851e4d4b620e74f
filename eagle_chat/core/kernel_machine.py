"""What kernels are shaped by, and what those of whole layers are called with."""

from __future__ import annotations

from dataclasses import dataclass

UNROLLED = 4
"""Vectors of a head that are summed at a time; its size is a multiple of so many."""
CALL = (
    "states", "input", "normed", "qkv", "attended", "hidden", "both", "inner", "scores", "cos", "sin",
    "positions", "rows", "start", "capacity", "threads",
)  # fmt: skip
"""Numbers of 64 bits that hold for all layers of a call. `states` [layers + 1, rows, hidden size]: hidden states, the
first of them given, the others made; `input` [rows, depth]: what the attention of the first layer reads, if not those;
`cos`, `sin` [any, head size]: angles by position, the first half of `sin` negated; `positions` [rows] int64. `normed`
to `scores` are room to work in."""
LAYER = (
    "form", "keys", "values", "mask",
    "input_norm", "qkv_weight", "qkv_bias", "out_weight", "out_bias", "mlp_norm", "up_weight", "up_bias", "down_weight",
    "down_bias", "depth", "hidden_size", "heads", "kv_heads", "head_size", "inner_size", "epsilon", "scale",
)  # fmt: skip
"""Those of one layer. `form`: which of the forms of a weight its weights have; what its attention reads is normed where
there is an `input_norm`; `epsilon` and `scale` are the bits of a float32."""
INPUTS = (
    "table", "tokens", "embedding_norm", "hidden", "places", "hidden_norm", "residual_norm", "form", "embedding_size",
    "hidden_size", "epsilon",
)  # fmt: skip
"""Those of what an `eagle3` head's layer reads: [norm(row `tokens` of `table`), norm(row `places` of `hidden`)], and of
its residual, that row of `hidden`, normed if there is a `residual_norm`. `form`: 1 for a table in bfloat16, else 0."""
CHOICE = (
    "hidden", "norm", "normed", "weight", "logits", "ids", "values", "form", "rows", "hidden_size", "size", "count",
    "epsilon", "threads",
)  # fmt: skip
"""Those of `choose`: the LM head, of `form` and `size`, on `hidden` [rows, hidden size], normed if there is a `norm`;
with `count` above 0 the best of its logits too, see `kernel_head`."""
SIZES = {
    "rows", "start", "capacity", "threads", "form", "depth", "hidden_size", "heads", "kv_heads", "head_size",
    "inner_size", "epsilon", "scale", "embedding_size", "size", "count", "group", "length", "stride", "rows_each",
    "heads_each",
}  # fmt: skip
"""All others are addresses."""


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
