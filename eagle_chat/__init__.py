"""EAGLE Chat: use, see and understand speculative decoding with EAGLE draft heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig

__version__ = "0.1.0"
__all__ = ["LoadConfig", "SamplingConfig", "TreeConfig", "__version__", "load_engine"]


def load_engine(config: LoadConfig | None = None, **options: Any) -> Engine:
    """An engine for `config`, or for the fields of `LoadConfig` given as keywords. Loads torch when called.

    Raises UserError (names, options) or HeadMismatchError (the head does not fit the target).
    """
    from eagle_chat.core.loading import load_engine as load

    return load(config if config is not None else LoadConfig(**options))
