"""The names people use for models, and what stands behind them (`assets/models.toml`)."""

from __future__ import annotations

import difflib
import functools
import tomllib
from dataclasses import dataclass

from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError


@dataclass(frozen=True)
class Entry:
    """`target` and `head`: a hub id, `embedded:NAME` or `asset:PATH`. `official`: a head of the EAGLE authors.
    `tau`: what was measured with that head and the default tree of its usual device."""

    target: str
    head: str | None = None
    official: bool = False
    template: str | None = None
    about: str = ""
    tau: float | None = None


@functools.cache
def entries() -> dict[str, Entry]:
    """Every alias."""
    with asset_path("models.toml").open("rb") as file:
        return {alias: Entry(**fields) for alias, fields in tomllib.load(file).items()}


def lookup(base: str) -> Entry | None:
    """The entry for an alias or for the hub id behind one; None for other hub ids. UserError for a near miss."""
    known = entries()
    if base in known:
        return known[base]
    by_target = next((entry for entry in known.values() if entry.target == base), None)
    if by_target is None and "/" not in base:
        near = difflib.get_close_matches(base.lower(), known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known aliases: {', '.join(known)}"
        raise UserError(f"an alias, hub id, folder or GGUF file expected, found {base!r}: {hint}")
    return by_target
