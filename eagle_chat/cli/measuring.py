"""What `bench` and `verify` have in common: the engine, the trees, and files at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_chat.bench.files import write_atomic
from eagle_chat.cli.options import Settings
from eagle_chat.cli.text import say
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.policies import tree_defaults

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine


def load(settings: Settings) -> Engine:
    """The engine; slow. Whatever a library prints while it loads goes to stderr."""
    import eagle_chat

    if settings.server.engine is not None:
        raise UserError(
            "a model in this process expected, found --engine: it answers chat, generate and bench --concurrency"
        )
    say(f"loading {settings.load.base} ...", quiet=True)
    with contextlib.redirect_stdout(sys.stderr):
        return eagle_chat.load_engine(settings.load)


def roomy_tree(engine: Engine) -> TreeConfig:
    """Depth and branching for trees larger than those of this machine: the papers'."""
    return tree_defaults(engine.head.spec.architecture if engine.head is not None else "eagle3", "cuda")


def answer_length(asked: int | None, sampling: SamplingConfig, default: int) -> SamplingConfig:
    """`sampling` with the longest answer as asked for, else as set in a file or variable, else `default`."""
    was_set = sampling.max_new_tokens != SamplingConfig.max_new_tokens
    chosen = asked if asked is not None else sampling.max_new_tokens if was_set else default
    return dataclasses.replace(sampling, max_new_tokens=chosen)


def save(path: Path | None, content: str | bytes) -> None:
    """Write a file that was asked for, and say so."""
    if path is not None:
        write_atomic(path, content)
        say(f"written: {path}", quiet=True)
