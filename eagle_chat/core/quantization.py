"""8-bit and 4-bit targets by bitsandbytes, and what keeps them usable for checking a draft.

A quantised target is never saved, and its `state_dict` is never taken: both can destroy it (see `guard`).
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Any

import torch

from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import UserError

INSTALL = "pip install 'eagle-chat[quant]'"
DEVICES = ("cpu", "cuda")
"""Kinds of device for which bitsandbytes has kernels in its package. (Those for MPS it fetches from the hub.)"""


def wanted(config: LoadConfig) -> bool:
    """Whether the target is to be quantised."""
    return config.load_in_8bit or config.load_in_4bit


def quantization_config(config: LoadConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """transformers' quantisation config; matrices are multiplied in `dtype`.

    UserError where bitsandbytes is missing, or has nothing for `device`. The 8-bit threshold is 0: with the default,
    outlier columns are found over all rows at once, so that a token's result would depend on the other nodes of the
    tree.
    """
    option = "--load-in-8bit" if config.load_in_8bit else "--load-in-4bit"
    if device.type not in DEVICES:
        raise UserError(
            f"a device of {', '.join(DEVICES)} expected for {option}, found {device.type}: give --device cpu, or leave "
            f"{option} out"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"bitsandbytes expected for {option}, found none: {INSTALL}")
    from transformers import BitsAndBytesConfig

    options: dict[str, Any] = {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    if config.load_in_4bit:
        options = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": dtype,
        }
    return BitsAndBytesConfig(**options)  # type: ignore[no-untyped-call]


def guard(model: Any) -> None:
    """Make the layers of a quantised model fit for decoding; call it before the first forward and after `eval()`.

    4-bit on a CPU with avx512_bf16: the layers repack themselves in the first forward and are corrupt after the next
    `state_dict()`; that is switched off. 8-bit on a CPU: the weights are turned back into numbers of the compute dtype
    for each product, because the other way rounds the *inputs* to 8 bits too, where a difference in the last place of
    a float becomes one of 1/127: a tree and a single token would soon disagree.
    """
    bnb: Any = sys.modules.get("bitsandbytes")
    if bnb is None:  # nothing was quantised with it
        return
    # It says at every single product that inputs are rounded to float16.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
        elif isinstance(module, bnb.nn.Linear8bitLt) and module.weight.device.type == "cpu":
            module.training = True  # in this class it chooses the product, and nothing else


def bits(model: Any) -> int | None:
    """8 or 4 for a quantised model, else None."""
    if getattr(model, "is_loaded_in_4bit", False):
        return 4
    return 8 if getattr(model, "is_loaded_in_8bit", False) else None
