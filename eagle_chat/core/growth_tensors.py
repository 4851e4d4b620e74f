"""A draft that grows on an accelerator: everything is done with tensors by level, so that the device is waited for only
where a policy looks at what has grown so far, and once when the finished tree is read."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from eagle_chat.core.children import Children, ChildRule
from eagle_chat.core.growth import DraftInput, Growth
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.transfer import sent
from eagle_chat.core.tree import DraftTree, Drawn, UnreadTree


class GrowthInTensors(Growth):
    """See `Growth`.

    `_levels`: by level, named tensors over that level's nodes. Of the nodes run last: `_run_ids` [R] their node ids,
    `_hidden` [R, H] their outputs, `_seen` [R, S] which staged entries each of them sees.
    """

    def __init__(self, head: DraftHead, start: DraftInput, rule: ChildRule) -> None:
        super().__init__(head, start, rule)
        self._device = start.hidden.device
        self._hidden = start.hidden
        self._run_ids = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._run_values = torch.zeros(1, device=self._device)
        self._seen = torch.zeros(1, 0, dtype=torch.bool, device=self._device)
        self._levels: list[dict[str, Tensor]] = []
        self._num_nodes = 1
        self._laws: list[tuple[Tensor, Tensor]] = []

    @property
    def depth(self) -> int:
        """See `Growth`."""
        return len(self._levels)

    def add(self, parents: list[int], ranks: list[int]) -> None:
        """See `Growth`."""
        rows = self._rows_of(parents)
        self._append(rows, sent(torch.tensor(ranks), self._device), self._children(max(ranks) + 1))

    def add_all(self, top_k: int) -> None:
        """See `Growth`."""
        rows, ranks = _grid(self._run_ids.shape[0], top_k, self._device)
        self._append(rows, ranks, self._children(top_k))

    def _children(self, count: int) -> Children:
        logits = self._head.logits(self._hidden).float()  # [R, Vd]
        position = self._start.position + self.depth + 1
        children = self._rule.choose(logits, min(count, logits.shape[-1]), position, self._head.draft_ids)
        if children.law is not None:
            self._laws.append((self._run_ids, children.law))
        return children

    def _append(self, rows: Tensor, ranks: Tensor, children: Children) -> None:
        self._levels.append(
            {
                "tokens": self._head.target_ids(children.ids[rows, ranks]),
                "parents": self._run_ids[rows],
                "values": self._run_values[rows] + self._adjusted(children.chances[rows, ranks]),
                "log_q": children.log_q[rows, ranks],
                "chances": children.chances[rows, ranks],
                "ranks": ranks,
                "rows": rows,
            }
        )
        self._first = self._num_nodes
        self._num_nodes += rows.shape[0]

    def values(self) -> list[list[float]]:
        """See `Growth`. Waits for the device."""
        flat = torch.cat([level["values"] for level in self._levels]).exp().tolist()
        result, at = [], 0
        for level in self._levels:
            count = level["values"].shape[0]
            result.append(flat[at : at + count])
            at += count
        return result

    def run_best(self, count: int) -> None:
        """See `Growth`."""
        values = self._levels[-1]["values"]
        self._run(values.topk(min(count, values.shape[0])).indices)

    def run(self, members: list[int]) -> None:
        """See `Growth`."""
        self._members = members
        self._run(sent(torch.tensor(members), self._device))

    def _rows_of(self, parents: list[int]) -> Tensor:
        """Rows among the nodes run last of these places within their level, [n]."""
        if not self._levels:
            return torch.zeros(len(parents), dtype=torch.int64, device=self._device)
        row = {member: index for index, member in enumerate(self._members)}
        return sent(torch.tensor([row[parent] for parent in parents]), self._device)

    def _run(self, chosen: Tensor) -> None:
        """One forward of the head over the chosen nodes [R] of the newest level."""
        newest = self._levels[-1]
        parents = newest["rows"][chosen]  # rows of the run before
        count = chosen.shape[0]
        own = torch.eye(count, dtype=torch.bool, device=self._device)
        self._seen = torch.cat((self._seen[parents], own), dim=1)  # [R, S + R]
        positions = torch.full((count,), self._start.position - 1 + self.depth, device=self._device)
        is_chain = count == 1 and self._seen.shape[1] == self.depth
        self._hidden = self._head(
            newest["tokens"][chosen],
            self._hidden[parents],
            positions,
            None if is_chain else self._seen,
            self._start.cache,
        )
        self._run_ids = self._first + chosen
        self._run_values = newest["values"][chosen]

    def tree(self, kept: int | None) -> DraftTree | UnreadTree:
        """See `Growth`."""
        self._start.cache.truncate(self._start.cache.length)
        if not self._levels:
            return DraftTree.of_root(self._start.root)
        columns = {name: torch.cat([level[name] for level in self._levels]) for name in self._levels[0]}
        count = self._num_nodes - 1
        if kept is None or kept >= count:
            chosen = torch.arange(count, device=self._device)
        else:
            chosen = columns["values"].sort(descending=True, stable=True).indices[:kept].sort().values
        # One tensor for everything: float64 holds every token id and node id exactly.
        names = ("tokens", "parents", "values", "log_q", "ranks", "chances")
        table = torch.stack([columns[name].double() for name in names])
        packed = torch.cat((table.flatten(), chosen.double()))
        finish = functools.partial(self._finished, count)
        if self._laws:
            return finish(packed.tolist())
        return UnreadTree(self._inputs(columns, chosen), self.depth, packed, finish)

    def _inputs(self, columns: dict[str, Tensor], chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the target needs of the nodes `chosen`, ascending: see `DraftTree.inputs`."""
        size = chosen.shape[0] + 1
        start = torch.zeros(1, dtype=torch.int64, device=self._device)
        kept = torch.cat((start, chosen + 1))  # node ids
        slots = start.expand(self._num_nodes).scatter(0, kept, torch.arange(size, device=self._device))
        parents = torch.cat((start, slots[columns["parents"][chosen]]))
        own = torch.eye(size, dtype=torch.bool, device=self._device)
        among = own
        for _ in range(self.depth):
            among = own | among[parents]
        tokens = torch.cat((start + self._start.root, columns["tokens"][chosen]))
        return tokens, among.sum(dim=1) - 1, among

    def _finished(self, count: int, packed: list[float]) -> DraftTree:
        """The tree, of `count` drafted nodes."""
        tokens, parents, values, log_q, ranks, chances = (packed[i * count : (i + 1) * count] for i in range(6))
        order = [int(index) for index in packed[6 * count :]]
        drawn = Drawn(_ints(tokens), _ints(parents), log_q, values, _ints(ranks), [], chances)
        laws = [(ids.tolist(), law) for ids, law in self._laws]
        return self._assemble(order, drawn, laws)

    def _adjusted(self, chances: Tensor) -> Tensor:
        return chances if self._rule.calibration is None else self._rule.calibration.adjust(chances)


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
