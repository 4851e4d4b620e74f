"""One cycle of fixed shape: feed the head, draft a dynamic tree, verify, walk, commit."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.static_steps import StaticHead, StaticLlama


def walk(tokens: Tensor, parents: Tensor, choices: Tensor, levels: int, forced: Tensor | None) -> tuple[Tensor, Tensor]:
    """Descend from the root while a child equals the target's choice. `tokens`, `parents`, `choices` [N].

    `forced` [1]: an oracle instead. Exactly so many first children are accepted, as far as there are any.
    Returns the path [levels + 1] (repeating its last node) and how many of its nodes are meant, [1].
    """
    node = torch.zeros(1, dtype=torch.int64, device=tokens.device)
    alive = torch.ones(1, dtype=torch.bool, device=tokens.device)
    path, count = [node], alive.long()
    for level in range(levels):
        child = parents == node
        match = child & (tokens == choices[node]) if forced is None else child & (forced > level)
        alive = alive & match.any(dim=0, keepdim=True)
        node = torch.where(alive, match.long().argmax(dim=0, keepdim=True), node)
        path.append(node)
        count = count + alive
    return torch.cat(path), count


class Cycle:
    """A tree of `nodes` nodes from `depth` levels of `top_k` children, over a target and its head.

    Between cycles `root` [1] is the newest token, `features` [depth + 1, 3 H] and `fed` [depth + 1] hold what the head
    has not seen: features of the newest committed tokens and the token after each, of which `waiting` [1] are meant.
    `plan` [1]: what the oracle accepts in this cycle; `plan` None: the true walk. `out` [depth + 2]: the count of the
    tokens that the cycle gave, and the tokens. That is all a host has to read.
    """

    def __init__(self, target: StaticLlama, head: StaticHead, taps: tuple[int, int, int], depth: int, top_k: int,
                 nodes: int, oracle: bool) -> None:  # fmt: skip
        device = target.embedding.device
        self.target, self.head, self.taps = target, head, taps
        self.depth, self.top_k, self.nodes = depth, top_k, nodes
        self.root = torch.zeros(1, dtype=torch.int64, device=device)
        width = 3 * target.shape.hidden
        self.features = torch.zeros(depth + 1, width, device=device, dtype=target.embedding.dtype)
        self.fed = torch.zeros(depth + 1, dtype=torch.int64, device=device)
        self.waiting = torch.ones(1, dtype=torch.int64, device=device)
        self.plan = torch.zeros(1, dtype=torch.int64, device=device) if oracle else None
        self.out = torch.zeros(depth + 2, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(nodes, dtype=torch.int64, device=device)
        self.parents = torch.full((nodes,), -1, dtype=torch.int64, device=device)
        self.steps = torch.arange(depth + 1, device=device)
        self._eye = torch.eye(max(nodes, top_k), dtype=torch.bool, device=device)
        self._causal = torch.ones(depth + 1, depth + 1, dtype=torch.bool, device=device).tril_()

    def draft(self) -> None:
        """Feed the head, then fill `tokens` and `parents` with the best nodes."""
        head, top_k = self.head, self.top_k
        hidden = head.forward(self.fed, torch.nn.functional.linear(self.features, head.fc), self.steps, self._causal)
        head.room.length += self.waiting
        hidden = hidden.index_select(0, self.waiting - 1)
        values, tokens = head.log_probs(hidden).topk(top_k, dim=-1)
        values, tokens = values[0], tokens[0]
        rows = torch.zeros_like(tokens)  # of each newest node: the row of its parent in the run before
        columns = [(tokens, values, torch.zeros_like(tokens))]
        seen, first = self._eye[:1, :0], 1
        for level in range(1, self.depth):
            chosen = values.topk(top_k).indices
            parents = rows[chosen]
            seen = torch.cat((seen[parents], self._eye[:top_k, :top_k]), dim=1)
            offsets = (level - 1 + self.steps[:1]).expand(top_k)
            hidden = head.forward(tokens[chosen], hidden[parents], offsets, seen)
            best = head.log_probs(hidden).topk(top_k, dim=-1)
            ids = first + chosen
            first += values.shape[0]
            values = (values[chosen][:, None] + best.values).flatten()
            tokens = best.indices.flatten()
            rows = torch.arange(top_k, device=ids.device).repeat_interleave(top_k)
            columns.append((tokens, values, ids[rows]))
        self._rerank(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def _rerank(self, tokens: Tensor, values: Tensor, parents: Tensor) -> None:
        """Keep the best; `parents` count the root as node 0 and the first drafted one as node 1."""
        kept = values.sort(descending=True, stable=True).indices[: self.nodes - 1].sort().values
        slots = torch.zeros(tokens.shape[0] + 1, dtype=torch.int64, device=tokens.device)
        slots.index_copy_(0, kept + 1, torch.arange(1, self.nodes, device=tokens.device))
        self.tokens[:1].copy_(self.root)
        self.tokens[1:].copy_(tokens[kept])
        self.parents[1:].copy_(slots[parents[kept]])

    def verify(self) -> None:
        """Run the tree through the target, walk down, commit, and leave `out`, `root` and what the head needs."""
        target = self.target
        ancestors, depths = self._ancestors()
        logits, features = target.forward(self.tokens, depths, ancestors, self.taps)
        choices = logits.argmax(dim=-1)
        path, count = walk(self.tokens, self.parents, choices, self.depth, self.plan)
        bonus = choices[path[-1:]]
        # The token after each node of the path: its child on the path, and the bonus at the end.
        following = torch.cat((self.tokens[path[1:]], bonus))
        following = torch.where(self.steps == count - 1, bonus, following)
        target.room.commit(path, count)
        self.features.copy_(features[path])
        self.fed.copy_(following)
        self.waiting.copy_(count)
        self.root.copy_(bonus)
        self.out[:1].copy_(count)
        self.out[1:].copy_(following)

    def _ancestors(self) -> tuple[Tensor, Tensor]:
        """bool [N, N] of `parents`, and the depth of every node, [N]."""
        eye = self._eye[: self.nodes, : self.nodes]
        above = self.parents.clamp(min=0)
        seen = eye
        for _ in range(self.depth):
            seen = eye | seen[above]
        return seen, seen.sum(dim=1) - 1


class PlainStep:
    """One token through the target, captured just as the cycle is: what the cycle is held against."""

    def __init__(self, target: StaticLlama, taps: tuple[int, int, int]) -> None:
        device = target.embedding.device
        self.target, self.taps = target, taps
        self.root = torch.zeros(1, dtype=torch.int64, device=device)
        self._zero = torch.zeros(1, dtype=torch.int64, device=device)
        self._one = torch.ones(1, dtype=torch.int64, device=device)
        self._seen = torch.ones(1, 1, dtype=torch.bool, device=device)

    def run(self) -> None:
        """Advance by one token."""
        logits, _ = self.target.forward(self.root, self._zero, self._seen, self.taps)
        self.root.copy_(logits.argmax(dim=-1))
        self.target.room.commit(self._zero, self._one)
