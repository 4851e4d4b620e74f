"""What `bench` and `verify` have in common: the engine, the trees, and files at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_chat.bench.report import MOST_HEADS
from eagle_chat.cli.options import Settings
from eagle_chat.cli.text import say
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.files import PUBLIC, write_atomic
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


def load_heads(settings: Settings, drafts: Sequence[str]) -> list[Engine]:
    """An engine for each head, all on one target; a single one where no or one head is named."""
    names = list(dict.fromkeys(drafts))
    if len(names) > 1:
        names = [name for name in names if name != "none"]  # plain decoding is measured in any case
    if len(names) > MOST_HEADS:
        raise UserError(f"at most {MOST_HEADS} heads expected, found {len(names)}: leave some --draft out")
    if names:
        settings = dataclasses.replace(settings, load=dataclasses.replace(settings.load, draft=names[0]))
    first = load(settings)
    if len(names) < 2:
        return [first]
    from eagle_chat.core.loading import with_head

    return [first, *(with_head(first, settings.load, name) for name in names[1:])]


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
        write_atomic(path, content, PUBLIC)
        say(f"written: {path}", quiet=True)
