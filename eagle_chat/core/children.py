"""Which tokens become the children of a node: the head's best, its samples, or those that the noise favours.

**Shared noise** drafts above temperature 0 with the noise that the target will draw with. The target's token at a
position is argmax(log p + g), with Gumbel noise g that is a function of (seed, position) alone. So the noise is known
before the target has been asked, and where the head's q is close to p, argmax(log q + g) is likely the very token.
Losslessness is untouched: a tree may depend on anything, its noise included, because under the coupled rule the draft
has no say in the draw. The target's token comes from its own logits and the same noise, with any tree and with none,
and a child is accepted only where it equals that token. (The rejection rule is another matter: it is lossless because
its children are independent of what they are judged by. It draws from other streams, and shares nothing.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from eagle_chat.core import fast_select, sampling
from eagle_chat.core.calibration import Calibration
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.noise import TargetNoise
from eagle_chat.core.sampling import Stream

CHANCE = (-0.15, 0.69, 0.14)
LEAST_LOG_Q = -6.0
"""First guess of a child's chance under shared noise, before recalibration: its logarithm is linear in the log-softmax
of the noisy scores (how clearly the child leads) and in log q (a lead that comes from luck rather than from q is the
less certain one, because p may differ there by more). Fitted to 12,484 draws at temperature 1 with the shipped head."""


@dataclass(frozen=True)
class Children:
    """The children of R nodes in the order of their ranks, each tensor [R, count]. `ids`: draft ids. `log_q`: the
    head's log-probability. `chances`: log of the chance, as the head sees it, that the target chooses this child.
    `law` [R, Vd]: the log-probabilities from which the children were sampled, where they were."""

    ids: Tensor
    log_q: Tensor
    chances: Tensor
    law: Tensor | None = None


class ChildRule(Protocol):
    """How a draft chooses children. `calibration`: by which their chances are corrected."""

    @property
    def calibration(self) -> Calibration | None:
        """None where they are taken as they are."""

    def choose(self, logits: Tensor, count: int, position: int, draft_ids: Tensor | None) -> Children:
        """`count` children for each row of the head's logits [R, Vd]; they stand at absolute `position`."""


@dataclass(frozen=True)
class BestChildren:
    """The head's most probable tokens."""

    calibration: Calibration | None = None

    def choose(self, logits: Tensor, count: int, position: int, draft_ids: Tensor | None) -> Children:
        """See `ChildRule.choose`."""
        ids, log_q = fast_select.best(logits, count)
        return Children(ids, log_q, log_q)


@dataclass(frozen=True)
class SampledChildren:
    """Children are sampled from the head at this temperature, without replacement (rejection rule)."""

    temperature: float
    seed: int
    calibration: None = None

    def choose(self, logits: Tensor, count: int, position: int, draft_ids: Tensor | None) -> Children:
        """See `ChildRule.choose`. The Gumbel top-k trick samples in order (Kool, van Hoof, Welling 2019)."""
        law = fast_select.usable((logits / self.temperature).log_softmax(dim=-1), logits.shape[-1])
        noise = sampling.gumbel(self.seed, Stream.DRAFT, position, law.numel(), law.device)
        order = (law + noise.view(law.shape)).topk(count, dim=-1).indices
        log_q = law.gather(-1, order)
        return Children(order, log_q, log_q, law)


def ranked(rule: ChildRule | None) -> ChildRule:
    """The rule for trees that are ranked and cut: that is a choice, even where children were asked to be sampled."""
    return BestChildren() if rule is None or isinstance(rule, SampledChildren) else rule


@dataclass(frozen=True)
class SharedNoise:
    """Children ranked by log q + g, with the target's own noise g for their position (see the module's text).

    q is the head's law after the warpers that the target's draw will go through.
    """

    config: SamplingConfig
    noise: TargetNoise
    calibration: Calibration

    def choose(self, logits: Tensor, count: int, position: int, draft_ids: Tensor | None) -> Children:
        """See `ChildRule.choose`. For the chances see `CHANCE`."""
        law = fast_select.usable(sampling.warp(logits, self.config).log_softmax(dim=-1), logits.shape[-1])
        noise = self.noise(position)
        scores = law + (noise[: law.shape[-1]] if draft_ids is None else noise[draft_ids]).to(law.dtype)
        best = scores.topk(count, dim=-1)
        log_q = law.gather(-1, best.indices)
        share = best.values - scores.logsumexp(dim=-1, keepdim=True)
        start, by_share, by_q = CHANCE
        chances = start + by_share * share + by_q * log_q.clamp(min=LEAST_LOG_Q)
        return Children(best.indices, log_q, chances)
