"""The weighted mean of two eagle3 heads of one target, the second trained on from the first.

    python bench/average_heads.py FIRST SECOND --out FOLDER [--share 0.5]

`--share` is the weight of SECOND, whose draft vocabulary and config the mean has. Rows of the LM head are matched by
the token they stand for; tokens that FIRST does not know keep SECOND's row. The mean of two heads of one training
is often better than both, because their errors differ (weight averaging, arXiv 2203.05482).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = "model.safetensors"
LM_HEAD = "lm_head.weight"


def target_ids(tensors: dict[str, Tensor]) -> list[int]:
    """The target's token of every row of the LM head."""
    ids: list[int] = (torch.arange(tensors["d2t"].shape[0]) + tensors["d2t"]).tolist()
    return ids


def average(first: dict[str, Tensor], second: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """(1 - share) FIRST + share SECOND; what is no number of the network is SECOND's."""
    rows = {token: row for row, token in enumerate(target_ids(first))}
    matched = second[LM_HEAD].clone()
    for row, token in enumerate(target_ids(second)):
        if token in rows:
            matched[row] = first[LM_HEAD][rows[token]]
    known = first | {LM_HEAD: matched}
    return {
        name: torch.lerp(known[name].float(), tensor.float(), share).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in second.items()
    }


def main() -> None:
    """Read, average, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.5)
    options = parser.parse_args()
    first, second = (load_file(folder / FILE) for folder in (options.first, options.second))
    if sorted(first) != sorted(second) or any(
        first[name].shape != second[name].shape for name in first if name != LM_HEAD
    ):
        raise SystemExit("two heads with the same tensors expected, found others: the second must come from the first")
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(options.second / "config.json", options.out)
    save_file(average(first, second, options.share), options.out / FILE)


if __name__ == "__main__":
    main()
