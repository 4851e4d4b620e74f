"""8-bit and 4-bit targets by bitsandbytes."""

from __future__ import annotations

import importlib.util
from typing import Any

from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import UserError


def quantization_config(config: LoadConfig) -> Any:
    """transformers' quantisation config for `config`. UserError where bitsandbytes is missing.

    The 8-bit threshold is 0: with the default, outlier columns are found over all rows at once, so that a token's
    result would depend on the other nodes of the tree.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError("bitsandbytes expected for 8-bit and 4-bit, found none: pip install 'eagle-chat[quant]'")
    import torch
    from transformers import BitsAndBytesConfig

    options: dict[str, Any] = {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    if config.load_in_4bit:
        options = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": torch.bfloat16 if config.dtype == "auto" else getattr(torch, config.dtype),
        }
    return BitsAndBytesConfig(**options)  # type: ignore[no-untyped-call]
