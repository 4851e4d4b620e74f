"""How well a head drafts: offline, from text alone, and live, through the engine; and whether the two agree.

Offline, every position of a text is judged at once by the training-time test. A greedy chain of as many steps can be
replayed from these judgements exactly, so on the engine's own answers both must give the same τ, up to rounding.
Where they do not, training and inference do not compute the same thing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.chat import Message
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.errors import UserError
from eagle_chat.core.metrics import Metrics
from eagle_chat.training.conversations import read, with_system
from eagle_chat.training.dataset import batches, samples, split
from eagle_chat.training.features import FeatureSource, LiveFeatures, Teacher, run_target
from eagle_chat.training.initialise import empty_head
from eagle_chat.training.objectives import Objective, Weights, acceptance
from eagle_chat.training.unroll import unroll, unrolled_attention

MAX_LENGTH, BATCH_TOKENS = 512, 2048
"""Of offline evaluation: samples are cut to so many tokens, and so many go through the target at once."""
TOLERATED = 0.1
"""Relative difference of the two τ beyond which training and inference do not fit each other. Rounding in half
precision moves single tokens, never a tenth of all."""


@torch.no_grad()
def measure(
    objective: Objective, source: FeatureSource, lengths: Sequence[int], batch_tokens: int, steps: int
) -> tuple[float, Tensor]:
    """Mean loss and counts [steps, 4] over the samples 0, 1, ... of these lengths, without noise."""
    training = objective.training
    objective.eval()
    counts = torch.zeros(steps, 4, dtype=torch.float64)
    losses, weights = [], []
    for numbers in batches(lengths, batch_tokens, seed=0, epoch=0):
        loss, counted = objective(source.batch(numbers), steps)
        counts += counted.cpu()
        losses.append(loss.item())
        weights.append(float(counted[0, 0]))
    objective.train(training)
    total = sum(weights) or 1.0
    return sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / total, counts


@dataclass(frozen=True)
class LiveResult:
    """τ of some answers by the engine with a chain, the same from offline judgements, and τ with the tree asked for.

    `accept_by_depth`: of the chain. `tokens`: of all answers.
    """

    questions: int
    tokens: int
    tau: float
    chain_tau: float
    replayed_chain_tau: float
    accept_by_depth: tuple[float, ...]
    warning: str | None


def live(
    engine: Engine, questions: Sequence[Sequence[Message]], tree: TreeConfig, sampling: SamplingConfig, steps: int
) -> LiveResult:
    """Answer the questions with `tree`, and greedily with a chain of `steps`, whose τ is replayed offline.

    The engine must have a head.
    """
    asked, chain = Metrics(), Metrics()
    replayed_tokens = replayed_cycles = 0
    greedy = SamplingConfig(max_new_tokens=sampling.max_new_tokens, ignore_stop_ids=sampling.ignore_stop_ids)
    for question in questions:
        _run(engine, question, sampling, tree, asked)
        single = Metrics()
        _run(engine, question, greedy, TreeConfig("chain", depth=steps), single, chain)
        prompt = engine.chat.encode(question)
        cycles = replayed_chain(engine, prompt, single.token_ids, steps)
        replayed_cycles += cycles
        replayed_tokens += max(0, len(single.token_ids) - 1)
    chain_tau, replayed = chain.tau or 1.0, replayed_tokens / max(1, replayed_cycles)
    return LiveResult(
        len(questions),
        len(asked.token_ids),
        asked.tau or 1.0,
        chain_tau,
        replayed,
        tuple(chain.accept_by_depth),
        disagreement(chain_tau, replayed),
    )


def disagreement(live_tau: float, offline_tau: float) -> str | None:
    """A warning where the engine accepts clearly less or more than the training code computes for the same text."""
    if abs(live_tau - offline_tau) <= TOLERATED * offline_tau:
        return None
    return (
        f"a chain's tau of {offline_tau:.2f} expected from offline acceptance on the same answers, found "
        f"{live_tau:.2f} through the engine: training and inference do not compute the same, so check taps, rope and "
        "dtype"
    )


def _run(
    engine: Engine, question: Sequence[Message], sampling: SamplingConfig, tree: TreeConfig, *metrics: Metrics
) -> None:
    for event in engine.stream(question, sampling=sampling, tree=tree):
        for one in metrics:
            one.add(event)


@torch.no_grad()
def replayed_chain(engine: Engine, prompt: Sequence[int], answer: Sequence[int], steps: int) -> int:
    """Cycles that a greedy chain of `steps` needs for `answer`, from offline judgements. The first token is free."""
    if len(answer) < 2:
        return 0
    right = _judgements(engine, [*prompt, *answer], steps)  # [T, steps]
    end = len(prompt) + len(answer) - 1  # place of the last token
    root, cycles = len(prompt), 0  # the root is the newest committed token
    while root < end:
        row = right[root - 1]  # entry t has the token t+1, the root, as its input
        accepted = next((step for step, good in enumerate(row) if not good), steps)
        accepted = min(accepted, end - root - 1)  # the target's own token takes the last place
        root += accepted + 1
        cycles += 1
    return cycles


def _judgements(engine: Engine, text: Sequence[int], steps: int) -> list[list[bool]]:
    """For every entry t and step j: whether the head names token t+2+j of `text`."""
    assert engine.head is not None
    head = empty_head(engine.head.spec, engine.target, engine.head.draft_ids)
    head.load_state_dict(engine.head.state_dict())
    tokens = torch.tensor([list(text)])
    batch = run_target(engine.target, tokens, torch.zeros_like(tokens, dtype=torch.bool), head.spec.taps)
    columns = []
    with unrolled_attention(head):
        for step, output in enumerate(unroll(head, batch.tokens, head.fuse(batch.features.float()), steps)):
            named = head.target_ids(head.logits(output[0]).argmax(dim=-1))  # [T]
            wanted = batch.tokens[0].roll(-(2 + step))
            columns.append(named == wanted)
    rows: list[list[bool]] = torch.stack(columns, dim=-1).tolist()
    return rows


def objective_for(engine: Engine) -> Objective:
    """The objective of an engine's head, for `measure`."""
    assert engine.head is not None
    head = empty_head(engine.head.spec, engine.target, engine.head.draft_ids)
    head.load_state_dict(engine.head.state_dict())
    return Objective(head, Teacher(engine.target, engine.head.draft_ids), Weights())


def offline(
    engine: Engine, data: Sequence[str], validation: float, limit: int, steps: int, system: str | None = None
) -> dict[str, Any]:
    """Acceptance of the engine's head on at most `limit` held-out samples of `data`, as JSON-ready values.

    `validation`: the share held out in training; 0 takes all samples. `system`: message for conversations that have
    none. UserError where nothing is held out.
    """
    found = list(samples((with_system(one, system) for one in read(data)), engine.chat, MAX_LENGTH))
    held_out = split(found, validation).validation if validation > 0 else tuple(found)
    if not held_out:
        raise UserError(f"held-out samples expected in {', '.join(data)}, found none: raise --validation, or give more")
    held_out = held_out[:limit]
    objective = objective_for(engine)
    source = LiveFeatures(engine.target, held_out, objective.head.spec.taps)
    loss, counts = measure(objective, source, [len(sample) for sample in held_out], BATCH_TOKENS, steps)
    return {"samples": len(held_out), "loss": loss, **dataclasses.asdict(acceptance(counts))}
