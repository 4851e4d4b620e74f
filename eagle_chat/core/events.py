"""What happens while an answer is made, as plain values.

A run is `Started`, one `Committed` for the prefill's own token (cycle 0), then for each decoding cycle `Drafted` and
`Verified` (only when traced) and `Committed`, and at the end `Finished`. An answer of a serving engine has `Committed`
for each piece that arrives, and `Reported` for what the engine says beside it. Every view, figure and file is made from
these alone. `to_json` and `from_json` are inverse to each other.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

FORMAT_VERSION = 1

FinishReason = Literal["stop", "length", "context", "error", "cancelled"]
Origin = Literal["draft", "target"]
Status = Literal["accepted", "rejected", "unreached"]
Stage = Literal["expanded", "kept"]
STAGES = ("draft", "verify", "sample", "commit", "other")
"""Where the time of a cycle goes."""


@dataclass(frozen=True)
class Started:
    """The header of a run: everything needed to read the events that follow, and to run it again."""

    prompt_tokens: int
    reused_tokens: int
    target: str
    head: str | None
    policy: str
    tree: dict[str, Any]
    sampling: dict[str, Any]
    device: str
    dtype: str
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)
    prompt: str | None = None
    version: int = FORMAT_VERSION
    type: Literal["started"] = "started"


@dataclass(frozen=True)
class DraftNode:
    """One drafted token. `id` 0 is the root; `q` the head's probability, `value` the log of the product of q's from
    the root, `rank` its place among its parent's children, `stage` whether reranking kept it. `slot` is its row in
    the tree that the target saw, -1 where it was not kept."""

    id: int
    parent: int
    depth: int
    token_id: int
    text: str
    q: float
    value: float
    rank: int
    stage: Stage
    slot: int


@dataclass(frozen=True)
class Drafted:
    """The draft tree of one cycle with every node that was considered, in the order drafted."""

    cycle: int
    nodes: list[DraftNode]
    type: Literal["drafted"] = "drafted"


@dataclass(frozen=True)
class VerifiedNode:
    """What the target made of one node of the tree. `p`: the target's probability of the node's token after its
    parent; `choice` and `choice_text`: the token the target chose after this node (None where never looked at);
    `u`: the uniform number it was held against (rejection rule only)."""

    slot: int
    p: float
    status: Status
    choice: int | None = None
    choice_text: str | None = None
    u: float | None = None


@dataclass(frozen=True)
class Verified:
    """The walk of one cycle: `path` holds slots from the root (0) on, `bonus` the target's own token at its end."""

    cycle: int
    nodes: list[VerifiedNode]
    path: list[int]
    bonus: int
    bonus_text: str
    type: Literal["verified"] = "verified"


@dataclass(frozen=True)
class Committed:
    """Tokens that are now part of the answer. `text` is what became readable with them. `num_nodes`: nodes the
    target saw, root included (0 in the prefill's own event). `accepted`: draft tokens the target accepted, before
    any cut at a stop or the budget. `num_nodes` 0 in a later event: a serving engine does not say. `seconds` by stage;
    cycle 0 has the single stage "prefill". `levels`: for each
    depth the path reached, whether a drafted token was accepted there. `pieces`: `text` by token, each what became
    readable with that token."""

    cycle: int
    token_ids: list[int]
    origins: list[Origin]
    text: str
    num_nodes: int
    accepted: int
    seconds: dict[str, float]
    levels: list[bool] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    type: Literal["committed"] = "committed"


@dataclass(frozen=True)
class Reported:
    """What a serving engine says of this answer up to now; each one replaces the one before.

    `ahead`: answers it gives before this one, 0 when it is this one's turn. `cycles`: target forwards of the decode
    phase. `judged_by_position`, `accepted_by_position`: of the drafted tokens at depth 1, 2, ..., how many the target
    looked at and accepted. `others`: the counts hold answers to others too.
    """

    ahead: int = 0
    prompt_tokens: int | None = None
    cycles: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    judged_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    others: bool = False
    type: Literal["reported"] = "reported"


@dataclass(frozen=True)
class Finished:
    """The end of a run. `text`: what was still held back. `message`: a sentence for people where there is need."""

    reason: FinishReason
    text: str
    cycles: int
    output_tokens: int
    message: str | None = None
    type: Literal["finished"] = "finished"


Event: TypeAlias = Started | Drafted | Verified | Committed | Reported | Finished


def to_json(event: Event) -> dict[str, Any]:
    """The event as JSON-ready values; its kind is under "type"."""
    return dataclasses.asdict(event)


@functools.cache
def _adapter() -> Any:
    from typing import Annotated

    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[Event, Field(discriminator="type")])


def from_json(value: dict[str, Any]) -> Event:
    """The event that `to_json` described; pydantic's ValidationError where the value is not one."""
    event: Event = _adapter().validate_python(value)
    return event
