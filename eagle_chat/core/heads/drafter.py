"""How a draft on the host runs a head: with lists, which a draft of a few nodes is kept in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle_chat.core import fast_select
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.transfer import sent


class Drafter:
    """A head for the length of a draft, in which its weights do not change."""

    def __init__(self, head: Any) -> None:
        """`head`: a `DraftHead`, which makes this."""
        self._head = head

    def fuse(self, features: Tensor) -> Tensor:
        """Target features [M, F] to the head's hidden input [M, H]."""
        fused: Tensor = self._head.fuse(features)
        return fused

    def run(
        self,
        tokens: list[int],
        hidden: Tensor,
        rows: list[int] | None,
        positions: list[int],
        among_new: Tensor | None,
        cache: TreeCache,
    ) -> Tensor:
        """`DraftHead.forward` of M entries: tokens, and the rows of `hidden` [any, H] that are their hidden inputs
        (None: all, in order); the entries are left staged. Returns [M, H]."""
        device = self._head.device
        chosen = hidden if rows is None else hidden[sent(torch.tensor(rows), device)]
        seen = None if among_new is None else sent(among_new, device)
        named, at = (sent(torch.tensor(values), device) for values in (tokens, positions))
        output: Tensor = self._head(named, chosen, at, seen, cache)
        return output

    def best(self, hidden: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
        """Target ids and log-probabilities of the `count` best tokens after outputs [M, H], best first, [M][count]."""
        ids, log_q = fast_select.best(self.logits(hidden).float(), count)
        return self._head.target_ids(ids).tolist(), log_q.tolist()

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [M, Vd] of outputs [M, H]."""
        logits: Tensor = self._head.logits(hidden)
        return logits
