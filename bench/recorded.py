"""Answers recorded once, and replayed under any draft policy with the head alone.

Decoding is lossless, so which tokens an answer has does not depend on the draft. So the target is run once for all
policies: it answers, many questions in one batch, and its features are kept. A replay is the engine itself with a
target that gives the recorded features, and for each position the recorded token.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from eagle_chat.bench.prompts import Question
from eagle_chat.core import masks, sampling
from eagle_chat.core.cache import TreeCache
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.detokenizer import Detokenizer
from eagle_chat.core.engine import CostsOf, Engine
from eagle_chat.core.files import PUBLIC, write_atomic
from eagle_chat.core.target import TargetOutput, cache_keyword


@dataclass(frozen=True)
class Recorded:
    """One answer: ids of prompt and answer, and the target's features [T, F] at all of them. `seed` drew it."""

    category: str
    prompt: list[int]
    answer: list[int]
    features: Tensor
    seed: int


def record(engine: Engine, questions: list[Question], temperature: float, num_tokens: int) -> list[Recorded]:
    """The first turns answered by the target, the first question with seed 1 and so on, in one batch."""
    assert engine.head is not None
    prompts = [engine.chat.encode([{"role": "user", "content": question.turns[0]}]) for question in questions]
    configs = [SamplingConfig(temperature=temperature, seed=1 + row) for row in range(len(questions))]
    answers = _answers(engine, prompts, configs, num_tokens)
    taps = engine.head.spec.taps
    result = []
    for question, config, prompt, answer in zip(questions, configs, prompts, answers, strict=True):
        tokens = torch.tensor(prompt + answer)
        count = tokens.shape[0]
        cache = engine.target.new_cache(count)
        with torch.inference_mode():
            output = engine.target.forward(tokens, torch.arange(count), masks.causal_matrix(count), cache, taps)
        assert output.features is not None
        result.append(Recorded(question.category, prompt, answer, output.features.clone(), config.seed))
    return result


@torch.inference_mode()
def _answers(
    engine: Engine, prompts: list[list[int]], configs: list[SamplingConfig], num_tokens: int
) -> list[list[int]]:
    """Plain decoding of a padded batch, each row with its own noise, up to its first stop id."""
    model, width = engine.target.model, max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    seen = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        seen[row, width - len(prompt) :] = 1
    positions = (seen.cumsum(1) - 1).clamp_(min=0)
    answers: list[list[int]] = [[] for _ in prompts]
    going = set(range(len(prompts)))
    cache: dict[str, Any] = {cache_keyword(model.forward): DynamicCache()}
    for step in range(num_tokens):
        output = model(input_ids=ids, attention_mask=seen, position_ids=positions, logits_to_keep=1, **cache)
        for row in sorted(going):
            token = sampling.draw(output.logits[row, -1], len(prompts[row]) + step, configs[row])
            answers[row].append(token)
            if token in engine.chat.stop_ids:
                going.discard(row)
        if not going:
            break
        ids = torch.tensor([[answer[-1]] for answer in answers])
        seen = torch.cat((seen, torch.ones_like(ids)), dim=1)
        positions = torch.tensor([[len(prompt) + step] for prompt in prompts])
    return answers


def recorded(path: Path, engine: Engine, questions: list[Question], temperature: float, tokens: int) -> list[Recorded]:
    """The answers in the file, or new ones, kept there."""
    if path.exists():
        with torch.serialization.safe_globals([Recorded]):
            return list(torch.load(path))
    answers = record(engine, questions, temperature, tokens)
    buffer = io.BytesIO()
    torch.save(answers, buffer)
    write_atomic(path, buffer.getvalue(), PUBLIC)
    return answers


class ReplayTarget:
    """Says at each position what was recorded there, whatever the tree."""

    def __init__(self, real: Any, answer: Recorded) -> None:
        self.name, self.device, self.dtype = real.name, real.device, real.dtype
        self.vocab_size, self.context_limit, self.steps = real.vocab_size, real.context_limit, real.steps
        self._tokens = torch.tensor([*answer.prompt, *answer.answer, 0])
        self._features = answer.features

    def new_cache(self, capacity: int) -> TreeCache:
        """A cache that only counts."""
        return TreeCache(0)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        among_new: Tensor,
        cache: TreeCache,
        taps: tuple[int, ...] = (),
        last_only: bool = False,
    ) -> TargetOutput:
        """As the real target's. A node off the recorded path is given no sense, and none is made of it."""
        cache.stage(tokens.shape[0])
        at = positions.clamp(max=self._features.shape[0] - 1)
        rows = at[-1:] if last_only else at
        logits = torch.full((rows.shape[0], self.vocab_size), -torch.inf)
        logits.scatter_(1, self._tokens[rows + 1][:, None], 0.0)
        return TargetOutput(logits, self._features[at] if taps else None)


def replaying(engine: Engine, answer: Recorded, costs: CostsOf | None = None) -> Engine:
    """An engine that goes through the answer again with the real head."""
    silent: Any = SimpleNamespace(decode=lambda _: "")
    chat: Any = SimpleNamespace(
        stop_ids=engine.chat.stop_ids, detokenizer=lambda _: Detokenizer(silent), token_text=str, text=str
    )
    target: Any = ReplayTarget(engine.target, answer)
    return Engine(target, chat, engine.head, engine.head_name, engine.defaults, costs=costs)
