"""The names people use for models, and what stands behind them (`assets/models.toml`)."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle_chat.core.assets import asset_path
from eagle_chat.core.config import TreeConfig
from eagle_chat.core.errors import UserError


@dataclass(frozen=True)
class Head:
    """A published head. `repo`: a hub id or `asset:PATH`. `method`: "eagle" or "eagle3". `official`: of the EAGLE
    authors. `parameters`: in billions, None where not known. `tree`: its defaults on an accelerator. `host`: "hub" or
    "modelscope", from where nothing is fetched here. `tau`: what was measured with the default tree of its usual
    device, where somebody did."""

    repo: str
    method: str
    official: bool = False
    parameters: float | None = None
    tree: Mapping[str, Any] = field(default_factory=dict)
    revision: str = "main"
    host: str = "hub"
    tau: float | None = None

    def tree_config(self) -> TreeConfig | None:
        """The dynamic tree that suits this head on an accelerator; None: what suits its architecture."""
        return TreeConfig("dynamic", **self.tree) if self.tree else None


@dataclass(frozen=True)
class Entry:
    """A target with its heads, the preferred one first. `target`: a hub id or `embedded:NAME`. `names`: aliases besides
    `alias`. `family`: how its prompts look; `template`: its name for `--template`, where the tokenizer has none.
    `dtype`: to compute in on an accelerator; `avoid`: formats that overflow. `thinks`: it writes its reasoning before
    the answer. `remote_code`: its code comes from its own repository."""

    alias: str
    target: str
    heads: tuple[Head, ...] = ()
    names: tuple[str, ...] = ()
    family: str = ""
    template: str | None = None
    dtype: str | None = None
    avoid: tuple[str, ...] = ()
    thinks: bool = False
    remote_code: bool = False
    revision: str = "main"
    about: str = ""

    @property
    def head(self) -> str | None:
        """What is taken where no --draft is given."""
        return self.heads[0].repo if self.heads else None

    @property
    def official(self) -> bool:
        """Whether that head is of the EAGLE authors, so that its figures compare with the papers'."""
        return bool(self.heads) and self.heads[0].official


@functools.cache
def entries() -> dict[str, Entry]:
    """Every target by its main alias."""
    with asset_path("models.toml").open("rb") as file:
        return {alias: _entry(alias, fields) for alias, fields in tomllib.load(file).items()}


def _entry(alias: str, fields: dict[str, Any]) -> Entry:
    known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    known["heads"] = tuple(Head(**head) for head in known.get("heads", ()))
    return Entry(alias, **known)


@functools.cache
def aliases() -> dict[str, Entry]:
    """Every target by each of its aliases."""
    return {name: entry for entry in entries().values() for name in (entry.alias, *entry.names)}


def is_alias(base: str) -> bool:
    """Whether `base` is one of the names, however it is written."""
    return _plain(base) in aliases()


def lookup(base: str) -> Entry | None:
    """The entry for an alias or for the hub id behind one; None for other hub ids. UserError for a near miss."""
    entry = aliases().get(_plain(base))
    if entry is None:
        entry = next((entry for entry in entries().values() if entry.target.lower() == base.lower()), None)
    if entry is None and "/" not in base:
        near = _near(_plain(base))
        hint = f"did you mean {', '.join(near)}?" if near else f"known aliases: {', '.join(entries())}"
        raise UserError(f"an alias, hub id, folder or GGUF file expected, found {base!r}: {hint}")
    return entry


def find_head(repo: str) -> Head | None:
    """What is known of a head by its hub id."""
    return next((head for entry in entries().values() for head in entry.heads if head.repo == repo), None)


def _plain(name: str) -> str:
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def _near(name: str) -> list[str]:
    """Up to three different targets by the alias that is most like `name`."""
    found: dict[str, str] = {}
    for near in difflib.get_close_matches(name, aliases(), n=12, cutoff=0.5):
        found.setdefault(aliases()[near].alias, near)
    return list(found.values())[:3]
