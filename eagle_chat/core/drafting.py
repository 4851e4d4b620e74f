"""Draft policies: how a head's predictions become a tree.

A policy expands nodes level by level. What the head has run stays staged in its cache, each node seeing the prefix
and its own ancestors; afterwards the cache goes back to the prefix. Everything is done with tensors by level, so that
the device is waited for only once, when the finished tree is read.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_chat.core import fast_select, sampling
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.sampling import Stream
from eagle_chat.core.tree import DraftTree, Drawn, Proposal, StaticLevel, static_levels


@dataclass(frozen=True)
class SampledChildren:
    """Children are sampled from the head at this temperature instead of being its top choices (rejection rule)."""

    temperature: float
    seed: int


@dataclass(frozen=True)
class DraftInput:
    """Where a draft starts. `hidden` [1, H]: the head's output that predicts the first drafted token. `root`: newest
    committed token, at absolute position `position`. `room`: most tokens that may follow it on one path."""

    hidden: Tensor
    root: int
    position: int
    cache: TreeCache
    room: int


@dataclass(frozen=True)
class NoDraft:
    """Plain decoding: the tree is its root."""

    name: str = "none"
    max_nodes: int = 1
    max_staged: int = 0
    samples_children: bool = False

    def draft(self, head: DraftHead, start: DraftInput, sampled: SampledChildren | None = None) -> DraftTree:
        """One node."""
        return DraftTree.of_root(start.root)


@dataclass(frozen=True)
class StaticTree:
    """A fixed tree of child ranks (EAGLE-1); a chain is one of them."""

    paths: tuple[tuple[int, ...], ...]
    name: str = "static"
    samples_children: bool = True
    levels: list[StaticLevel] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", static_levels(self.paths))

    @property
    def max_nodes(self) -> int:
        """Nodes of a full tree, root included."""
        return 1 + len(self.paths)

    @property
    def max_staged(self) -> int:
        """Most entries that lie in the head's cache behind the prefix during a draft."""
        return len(self.paths)

    def draft(self, head: DraftHead, start: DraftInput, sampled: SampledChildren | None = None) -> DraftTree:
        """Every node of the fixed tree, cut to the room left."""
        growth = _Growth(head, start, sampled)
        levels = self.levels[: start.room]
        for index, level in enumerate(levels):
            if index > 0:
                growth.run(sorted(set(level.parents)))
            rows = growth.rows_of(level.parents)
            growth.add(rows, torch.tensor(level.ranks, device=rows.device))
        return growth.tree(kept=None)


@dataclass(frozen=True)
class DynamicTree:
    """Expand the most valuable nodes, then keep the most valuable of all (EAGLE-2, arXiv 2406.16858, section 4)."""

    depth: int
    top_k: int
    total_tokens: int
    name: str = "dynamic"
    samples_children: bool = False

    @property
    def max_nodes(self) -> int:
        """Nodes sent to the target, root included."""
        return self.total_tokens

    @property
    def max_staged(self) -> int:
        """Most entries that lie in the head's cache behind the prefix during a draft."""
        return self.top_k * (self.depth - 1)

    def draft(self, head: DraftHead, start: DraftInput, sampled: SampledChildren | None = None) -> DraftTree:
        """Expand `depth` levels (fewer where the room ends), rerank, keep the best `total_tokens - 1`."""
        growth = _Growth(head, start, None)
        depth = min(self.depth, start.room)
        for level in range(depth):
            if level > 0:
                growth.run_best(self.top_k)
            growth.add_all(self.top_k)
        return growth.tree(kept=self.total_tokens - 1)


Policy = NoDraft | StaticTree | DynamicTree


class _Growth:
    """A draft while it grows. Node ids count from the root (0) in the order drafted.

    `_tokens`, `_parents`, `_values`, `_log_q`, `_ranks`: by level, tensors over that level's nodes. `_log_probs`
    [R, Vd]: of the nodes run last (`_run_ids` [R] their node ids, `_hidden` [R, H] their outputs). `_seen` [R, S]:
    which staged entries each of them sees.
    """

    def __init__(self, head: DraftHead, start: DraftInput, sampled: SampledChildren | None) -> None:
        self._head, self._start, self._sampled = head, start, sampled
        self._device = start.hidden.device
        self._hidden = start.hidden
        self._run_ids = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._run_values = torch.zeros(1, device=self._device)
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=self._device)
        self._levels: list[dict[str, Tensor]] = []
        self._num_nodes = 1
        self._proposals: list[tuple[Tensor, Tensor]] = []
        self._read_logits()

    def _read_logits(self) -> None:
        logits = self._head.logits(self._hidden).float()  # [R, Vd]
        if self._sampled is not None:
            logits = logits / self._sampled.temperature
        self._log_probs = logits.log_softmax(dim=-1)
        if self._sampled is not None:
            self._log_probs = self._usable(self._log_probs)
            self._proposals.append((self._run_ids, self._log_probs))

    def _usable(self, log_probs: Tensor) -> Tensor:
        """Without NaN, which cannot be ranked. Any law may stand in: the target decides what is accepted."""
        return log_probs.clamp_(max=0.0).nan_to_num_(nan=-math.log(self._log_probs.shape[-1]))

    def _ranked(self, count: int) -> tuple[Tensor, Tensor]:
        """For each node run last, the best (or sampled) `count` children: log-probabilities, draft ids, [R, count]."""
        if self._sampled is None:
            values, indices = fast_select.top_k(self._log_probs, count)
            return self._usable(values), indices
        # The Gumbel top-k trick samples without replacement, in order (Kool, van Hoof, Welling 2019).
        position = self._start.position + len(self._levels) + 1
        size = self._log_probs.shape[-1]
        rows = self._log_probs.shape[0]
        noise = sampling.gumbel(self._sampled.seed, Stream.DRAFT, position, rows * size, self._device)
        order = (self._log_probs + noise.view(rows, size)).topk(count, dim=-1).indices
        return self._log_probs.gather(-1, order), order

    def add(self, rows: Tensor, ranks: Tensor) -> None:
        """A level with one node for each (row of the nodes run last, rank among its children), both [n]."""
        log_q, draft_ids = self._ranked(min(int(ranks.max()) + 1, self._log_probs.shape[-1]))
        self._append(rows, ranks, log_q[rows, ranks], draft_ids[rows, ranks])

    def add_all(self, top_k: int) -> None:
        """A level with the best `top_k` children of every node run last."""
        log_q, draft_ids = self._ranked(top_k)
        rows, ranks = _grid(log_q.shape[0], top_k, self._device)
        self._append(rows, ranks, log_q.flatten(), draft_ids.flatten())

    def _append(self, rows: Tensor, ranks: Tensor, log_q: Tensor, draft_ids: Tensor) -> None:
        self._levels.append(
            {
                "tokens": self._head.target_ids(draft_ids),
                "parents": self._run_ids[rows],
                "values": self._run_values[rows] + log_q,
                "log_q": log_q,
                "ranks": ranks,
                "rows": rows,
            }
        )
        self._first = self._num_nodes
        self._num_nodes += rows.shape[0]

    def run_best(self, count: int) -> None:
        """Run the `count` most valuable nodes of the newest level through the head."""
        values = self._levels[-1]["values"]
        self._run(values.topk(min(count, values.shape[0])).indices)

    def run(self, members: list[int]) -> None:
        """Run these nodes of the newest level (places within it) through the head."""
        self._members = members
        self._run(torch.tensor(members, device=self._device))

    def rows_of(self, parents: list[int]) -> Tensor:
        """Rows among the nodes run last of these places within their level, [n]."""
        if not self._levels:
            return torch.zeros(len(parents), dtype=torch.int64, device=self._device)
        row = {member: index for index, member in enumerate(self._members)}
        return torch.tensor([row[parent] for parent in parents], device=self._device)

    def _run(self, chosen: Tensor) -> None:
        """One forward of the head over the chosen nodes [R] of the newest level."""
        newest = self._levels[-1]
        parents = newest["rows"][chosen]  # rows of the run before
        count = chosen.shape[0]
        own = torch.eye(count, dtype=torch.bool, device=self._device)
        self._seen = torch.cat((self._seen[parents], own), dim=1)  # [R, S + R]
        depth = len(self._levels)
        positions = torch.full((count,), self._start.position - 1 + depth, device=self._device)
        is_chain = count == 1 and self._seen.shape[1] == depth
        self._hidden = self._head(
            newest["tokens"][chosen],
            self._hidden[parents],
            positions,
            None if is_chain else self._seen,
            self._start.cache,
        )
        self._run_ids = self._first + chosen
        self._run_values = newest["values"][chosen]
        self._read_logits()

    def tree(self, kept: int | None) -> DraftTree:
        """Rerank: the best `kept` nodes of all by value (None: every node). Frees what the head had staged.

        A child's value is never above its parent's, and the sort is stable in drafting order, so a tie goes to the
        shallower, earlier node and no node is kept without its parent.
        """
        self._start.cache.truncate(self._start.cache.length)
        if not self._levels:
            return DraftTree.of_root(self._start.root)
        columns = {name: torch.cat([level[name] for level in self._levels]) for name in self._levels[0]}
        count = self._num_nodes - 1
        if kept is None or kept >= count:
            chosen = torch.arange(count, device=self._device)
        else:
            chosen = columns["values"].sort(descending=True, stable=True).indices[:kept].sort().values
        # One transfer for everything: float64 holds every token id and node id exactly.
        names = ("tokens", "parents", "values", "log_q", "ranks")
        table = torch.stack([columns[name].double() for name in names])
        packed = torch.cat((table.flatten(), chosen.double())).tolist()
        tokens, parents, values, log_q, ranks = (packed[i * count : (i + 1) * count] for i in range(5))
        order = [int(index) for index in packed[5 * count :]]
        return self._assemble(order, Drawn(_ints(tokens), _ints(parents), log_q, values, _ints(ranks), []))

    def _assemble(self, order: list[int], drawn: Drawn) -> DraftTree:
        slot = {0: 0} | {node + 1: place for place, node in enumerate(order, start=1)}
        drawn.slots.extend(slot.get(node + 1, -1) for node in range(len(drawn.tokens)))
        return DraftTree(
            tokens=[self._start.root, *(drawn.tokens[node] for node in order)],
            parents=[-1, *(slot[drawn.parents[node]] for node in order)],
            scores=[0.0, *(drawn.values[node] for node in order)],
            proposals=self._kept_proposals(slot),
            drawn=drawn,
        )

    def _kept_proposals(self, slot: dict[int, int]) -> dict[int, Proposal]:
        ids = self._head.draft_ids
        return {
            slot[node]: Proposal(row, ids)
            for run_ids, log_probs in self._proposals
            for node, row in zip(run_ids.tolist(), log_probs, strict=True)
            if node in slot
        }


@functools.cache
def _grid(count: int, top_k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and rank of every node of a level with `top_k` children for each of `count` nodes, both [count * top_k].

    The same few shapes come back in every cycle, so they are made once.
    """
    with torch.inference_mode(False):
        places = torch.arange(count * top_k, device=device)
        return places // top_k, places % top_k


def _ints(values: list[float]) -> list[int]:
    return [int(value) for value in values]
