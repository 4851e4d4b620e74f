"""Three lossless rules that decide which path of the draft tree the target accepts.

Each walks from the root. `logits` [N, V] are the target's at every node, `position` is the absolute position of the
root, so that the token after node i stands at `position + depth(i) + 1`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_chat.core import sampling
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.sampling import Noise, Stream
from eagle_chat.core.transfer import runs_apart, sent
from eagle_chat.core.tree import DraftTree, UnreadTree


class UnusableLogitsError(EagleChatError):
    """The target gave NaN or +inf where its next token was needed."""


@dataclass(frozen=True)
class Acceptance:
    """`path`: slots from the root (0) to the last accepted node. `bonus`: the target's own token after it.
    `choices`: by slot, the token chosen there. `uniforms`: by slot, the number a child was held against."""

    path: list[int]
    bonus: int
    choices: dict[int, int]
    uniforms: dict[int, float] = field(default_factory=dict)

    def levels(self, children: list[list[int]]) -> list[bool]:
        """For each depth where the path had drafted children to judge: whether one was accepted."""
        return [node != self.path[-1] for node in self.path if children[node]]


def verify(
    tree: DraftTree | UnreadTree, logits: Tensor, position: int, config: SamplingConfig, noise: Noise | None = None
) -> Acceptance:
    """Apply the rule that `config` names. UnusableLogitsError where even the root's row cannot be drawn from.

    `noise`: the target's noise by position where it is known already, the same numbers as `sampling.gumbel` gives.
    """
    rows = _Rows(tree, logits, position, config, noise)
    if not rows.usable(0):
        raise UnusableLogitsError(
            f"the target's logits at position {position} hold NaN or infinity, finite numbers were expected: "
            "try --dtype float32 or bfloat16"
        )
    if config.verify == "rejection" and not config.greedy:
        return _rejection(tree.read(), logits, position, config, rows)
    return _coupled(tree.read(), rows)


class _Rows:
    """What the rules ask about single rows of the logits. On a CPU each row is looked at when asked about, since most
    never are; elsewhere all at once, since to wait for the device is what costs."""

    def __init__(
        self,
        tree: DraftTree | UnreadTree,
        logits: Tensor,
        position: int,
        config: SamplingConfig,
        noise: Noise | None,
    ) -> None:
        self._logits, self._config, self._noise = logits, config, noise
        self._first = position + 1
        self._known = self._asked(tree) if runs_apart(logits.device) else None
        self._depths = tree.read().depths()

    def _asked(self, tree: DraftTree | UnreadTree) -> list[list[int]]:
        """Choices and whether they are usable, by slot, read together with the tree."""
        usable = torch.isfinite(self._logits.max(dim=-1).values).long()
        choices = usable
        if self._config.greedy:
            choices = self._logits.argmax(dim=-1)
        elif self._config.verify == "coupled":
            noise = self._noise or sampling.target_noise(self._config, self._logits)
            levels = sent(tree.inputs()[1], self._logits.device)
            at = torch.stack([noise(self._first + level) for level in range(tree.depth + 1)])
            choices = (sampling.warp(self._logits, self._config).double() + at[levels]).argmax(dim=-1)
        return tree.read_beside(torch.stack((choices, usable)))

    def usable(self, slot: int) -> bool:
        """Whether the row can be drawn from."""
        return sampling.is_usable(self._logits[slot]) if self._known is None else bool(self._known[1][slot])

    def choice(self, slot: int) -> int:
        """The target's own token there: its argmax, or its keyed draw."""
        if self._known is not None:
            return self._known[0][slot]
        return sampling.draw(self._logits[slot], self._first + self._depths[slot], self._config, self._noise)


def _coupled(tree: DraftTree, rows: _Rows) -> Acceptance:
    """Descend while a child equals the target's own choice."""
    children = tree.children()
    path, choices = [0], {}
    while True:
        slot = path[-1]
        choice = choices[slot] = rows.choice(slot)
        match = next((child for child in children[slot] if tree.tokens[child] == choice), None)
        # A node whose own row is broken is never accepted: its token is right, but nothing can follow it here.
        if match is None or not rows.usable(match):
            return Acceptance(path, choice, choices)
        path.append(match)


def _rejection(tree: DraftTree, logits: Tensor, position: int, config: SamplingConfig, rows: _Rows) -> Acceptance:
    """Speculative sampling (arXiv 2211.17192, Appendix A.1) over several children, tried in order.

    Sampled children (those of a node with a proposal) are held against p/q and leave norm(max(0, p - q)) behind.
    A deterministic choice has a point mass as q: held against p, leaves p without that token.
    """
    children = tree.children()
    path: list[int] = [0]
    choices: dict[int, int] = {}
    uniforms: dict[int, float] = {}
    while True:
        slot = path[-1]
        here = position + len(path)
        p = sampling.warp(logits[slot], config).double().softmax(dim=-1)  # [V]
        proposal = tree.proposals.get(slot)
        log_q = _dense(proposal.log_q, proposal.ids, p) if proposal else None
        accepted = None
        for child in children[slot]:
            token = tree.tokens[child]
            limit = p[token] / log_q[token].exp() if log_q is not None else p[token]
            u = uniforms[child] = sampling.uniform(config.seed, Stream.ACCEPT, here, child)
            if u < float(limit):
                accepted = child
                break
            p, log_q = _after_refusal(p, log_q, token)
        if accepted is not None and rows.usable(accepted):
            choices[slot] = tree.tokens[accepted]
            path.append(accepted)
            continue
        if accepted is not None:
            bonus = tree.tokens[accepted]
        else:
            noise = sampling.gumbel(config.seed, Stream.RESIDUAL, here, p.shape[0], p.device)
            bonus = int((p.log() + noise).argmax())
        choices[slot] = bonus
        return Acceptance(path, bonus, choices, uniforms)


def _dense(log_q: Tensor, ids: Tensor | None, like: Tensor) -> Tensor:
    """A proposal over the target's vocabulary, log-probabilities [V]."""
    dense = torch.full_like(like, -torch.inf)
    if ids is None:
        dense[: log_q.shape[0]] = log_q.to(like)
    else:
        dense[ids] = log_q.to(like)
    return dense


def _after_refusal(p: Tensor, log_q: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
    """What remains of p (and of q) once a child with `token` was refused; both renormalised.

    q stays in logarithms: beside a child that the head was sure of, the others may lie below the smallest float64.
    """
    if log_q is None:
        rest = p.clone()
        rest[token] = 0.0
        return _normalised(rest, p), None
    p = _normalised((p - log_q.exp()).clamp_(min=0.0), p)
    log_q = log_q.clone()
    log_q[token] = -torch.inf
    return p, log_q.log_softmax(dim=-1)


def _normalised(rest: Tensor, before: Tensor) -> Tensor:
    total = rest.sum()
    # Nothing left happens by rounding alone (p equal to q up to the last bit): then the refusal had chance 0.
    return rest / total if float(total) > 0.0 else before
