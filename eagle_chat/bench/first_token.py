"""One cycle's first token, drawn many times: does it follow the target's own law?

The prompt is read, one token is drawn after it and becomes the root, and the head drafts. Then the rule decides with
one seed after another which token follows the root. The law it should follow is known exactly: the target's
distribution at the root. Two rules that are wrong on purpose stand beside the two that are right: a test that cannot
fail shows nothing. What their faults do is known exactly too, and is next to nothing where the drafted tokens are
almost impossible or almost certain. So the root is the first one of the answer at which either fault would show.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from eagle_chat.bench.law import LawTest
from eagle_chat.core import masks, sampling
from eagle_chat.core.children import SampledChildren
from eagle_chat.core.config import SamplingConfig, TreeConfig, VerifyRule
from eagle_chat.core.errors import UserError
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.policies import resolve
from eagle_chat.core.sampling import Stream
from eagle_chat.core.tree import DraftTree
from eagle_chat.core.verification import verify

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

Rule = Literal["coupled", "rejection", "no residual", "wrong q"]
"""Coupled and rejection are right. "no residual": a refused child stays in the law, so that it gets a second chance.
"wrong q": children that were a fixed choice are judged by p/q, as if they had been sampled from q."""
WRONG: tuple[Rule, ...] = ("no residual", "wrong q")
LONGEST_PROMPT = 512
"""Tokens: one forward."""
SHOWS = 0.1
"""Total variation between the law of a wrong rule and the target's that a few hundred draws make plain."""
ROOTS = 6
"""Tokens of the answer that are looked at for a root where wrong rules show."""


class FirstTokens:
    """The situation at one root, and draws of the token after it."""

    def __init__(self, engine: Engine, prompt: Sequence[int], tree: TreeConfig, config: SamplingConfig) -> None:
        """Reads the prompt and drafts once. `config`: temperature and warpers. UserError where nothing can be
        sampled."""
        if engine.head is None:
            raise UserError("a draft head expected, found none: choose a head")
        if config.greedy:
            raise UserError("a temperature above 0 expected, found 0: at 0 there is nothing to draw")
        if not 1 <= len(prompt) <= LONGEST_PROMPT:
            raise UserError(f"a prompt of 1 to {LONGEST_PROMPT} tokens expected, found {len(prompt)}: shorten it")
        self._engine, self._config = engine, config
        policy, self.tree_config, _ = resolve(tree, engine.head, engine.defaults, lambda: engine.costs(len(prompt)))
        self._policy = policy
        self._choose_root(list(prompt))
        self._test = LawTest(exact=True)
        self.counts: Counter[int] = Counter()

    def _choose_root(self, prompt: list[int]) -> None:
        """Stand at the first root at which each wrong rule would show; where none is, at the one where they show most.

        Sets `beginning`, the answer up to the root, and `wrong`, how far each wrong rule is from the law (total
        variation)."""
        best, clearest = 1, -1.0
        answer: list[int] = []
        while self._stand(prompt, answer) < SHOWS:
            if self._apart > clearest:
                best, clearest = len(self.beginning), self._apart
            answer = self.beginning
            if len(answer) == ROOTS or self.root in self._engine.chat.stop_ids:
                self._stand(prompt, answer[: best - 1])
                return

    def _stand(self, prompt: list[int], answer: list[int]) -> float:
        """Read prompt and answer so far, draw the root after them, draft; how far the closer wrong rule is away."""
        self._position = len(prompt) + len(answer)
        self._read([*prompt, *answer])
        self.beginning = [*answer, self.root]
        self.law = sampling.warp(self._row, self._config).softmax(dim=-1)  # [V]
        self._fixed = _children_only(self._draft())
        self.wrong = {rule: float((self.wrong_law(rule) - self.law).abs().sum()) / 2 for rule in WRONG}
        self._apart = min(self.wrong.values())
        return self._apart

    @torch.inference_mode()
    def _read(self, prompt: list[int]) -> None:
        """The target's row at the root, [V], and the head's output for it."""
        engine, head = self._engine, self._engine.head
        assert head is not None
        count = len(prompt)
        causal = masks.causal_matrix(count)
        cache = engine.target.new_cache(count + 1)
        output = engine.target.forward(
            torch.tensor(prompt), torch.arange(count), causal, cache, head.spec.taps, last_only=True
        )
        cache.commit(list(range(count)))
        assert output.features is not None
        self.root = sampling.draw(output.logits[-1], count, self._config)
        at_root = engine.target.forward(
            torch.tensor([self.root]), torch.tensor([count]), masks.causal_matrix(1), cache, ()
        )
        self._row = at_root.logits[-1].float()
        self._head_cache = head.new_cache(count + self._policy.max_staged)
        after = torch.tensor([*prompt[1:], self.root], device=head.device)
        positions = torch.arange(count, device=head.device)
        hidden = head(after, head.fuse(output.features), positions, causal.to(head.device), self._head_cache)
        self._head_cache.commit(list(range(count)))
        self._hidden: Tensor = hidden[-1:]

    @torch.inference_mode()
    def _draft(self, sampled: SampledChildren | None = None) -> DraftTree:
        head = self._engine.head
        assert head is not None
        # Sampled children are drawn anew for every token; only those of the root matter, so one level is enough.
        room = 1 if self._policy.samples_children else self.tree_config.depth or 1
        start = DraftInput(self._hidden, self.root, self._position, self._head_cache, room)
        return self._policy.draft(head, start, sampled).read()

    @torch.inference_mode()
    def draw(self, seed: int, rule: Rule) -> int:
        """The token after the root with this seed; it is counted."""
        right: VerifyRule = "coupled" if rule == "coupled" else "rejection"
        config = dataclasses.replace(self._config, seed=seed, verify=right)
        tree = self._fixed
        if self._policy.samples_children and rule == "rejection":
            tree = _children_only(self._draft(SampledChildren(config.temperature, seed)))
        if rule in WRONG:
            token = self._wrongly(config, rule)
        else:
            # Only the root's row matters for its child; the rows below are never asked for more than being numbers.
            acceptance = verify(tree, self._row.expand(len(tree), -1), self._position, config)
            token = tree.tokens[acceptance.path[1]] if len(acceptance.path) > 1 else acceptance.bonus
        self.counts[token] += 1
        self._test.add(self.law, token)
        return token

    def _fault(self, rule: Rule) -> tuple[list[float], Tensor]:
        """The rejection rule with one fault: the chance that each fixed child is accepted, where those before it are
        not, and the law [V] of the token where none is."""
        law, chances = self.law.double(), []
        for token, score in zip(self._fixed.tokens[1:], self._fixed.scores[1:], strict=True):
            chance = float(law[token])
            if rule == "wrong q":
                chance = min(chance / max(math.exp(score), 1e-9), 1.0)
                law = law.clone()  # the residual that goes with a point mass
                law[token] = 0.0
                law /= law.sum().clamp(min=1e-12)
            chances.append(chance)
        return chances, law

    def wrong_law(self, rule: Rule) -> Tensor:
        """The law that a wrong rule really draws from, [V]."""
        chances, law = self._fault(rule)
        drawn, left = torch.zeros_like(law), 1.0
        for token, chance in zip(self._fixed.tokens[1:], chances, strict=True):
            drawn[token] += left * chance
            left *= 1.0 - chance
        return drawn + left * law

    def _wrongly(self, config: SamplingConfig, rule: Rule) -> int:
        """A draw with a wrong rule."""
        chances, law = self._fault(rule)
        here = self._position + 1
        for child, chance in enumerate(chances, start=1):
            if sampling.uniform(config.seed, Stream.ACCEPT, here, child) < chance:
                return self._fixed.tokens[child]
        noise = sampling.gumbel(config.seed, Stream.RESIDUAL, here, law.shape[0], law.device)
        return int((law.log() + noise).argmax())

    def result(self, shown: int = 10) -> dict[str, Any]:
        """The test so far, and the `shown` most probable or most drawn tokens beside each other, JSON-ready.

        `tokens`: text, p (the target's), drawn (share), drafted (whether it is a child of the root); `rest` the same
        for all others; `beginning` the answer's text up to the root; `wrong` see `_choose_root`.
        """
        total = max(sum(self.counts.values()), 1)
        likely = self.law.topk(min(shown, len(self.law))).indices.tolist()
        often = [token for token, _ in self.counts.most_common(shown)]
        chosen = sorted({*likely, *often}, key=lambda token: -float(self.law[token]))[:shown]
        children = set(self._fixed.tokens[1:])
        rows: list[dict[str, Any]] = [
            {
                "text": self._engine.chat.token_text(token),
                "p": float(self.law[token]),
                "drawn": self.counts[token] / total,
                "drafted": token in children,
            }
            for token in chosen
        ]
        rest = {
            "p": max(0.0, 1.0 - sum(row["p"] for row in rows)),
            "drawn": max(0.0, 1.0 - sum(row["drawn"] for row in rows)) if self.counts else 0.0,
        }
        beginning = "".join(self._engine.chat.token_text(token) for token in self.beginning)
        return {**self._test.result(), "tokens": rows, "rest": rest, "beginning": beginning, "wrong": self.wrong}


def _children_only(tree: DraftTree) -> DraftTree:
    """The root and its children."""
    kept = [0, *(slot for slot, parent in enumerate(tree.parents) if parent == 0)]
    proposals = {0: tree.proposals[0]} if 0 in tree.proposals else {}
    return DraftTree(
        tokens=[tree.tokens[slot] for slot in kept],
        parents=[-1, *[0] * (len(kept) - 1)],
        scores=[tree.scores[slot] for slot in kept],
        proposals=proposals,
    )
