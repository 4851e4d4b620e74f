"""Do the numbers stay finite? Target and head on one text, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_chat.core import masks
from eagle_chat.core.engine import Engine
from eagle_chat.core.target import Target
from eagle_chat.doctor.findings import Finding, ok

GROUP = "run"
NEAR = 0.5
"""Share of a format's largest number from which on another text may go beyond it."""
PLAIN_ENGLISH = (
    "The sun was low when they reached the village. An old man sat in front of the last house and asked where they "
    "came from. They told him about the road, the rain and the long way over the hills."
)
SURPRISED = 0.8
"""Share of a blind guess's surprise (log V) from which on a text means nothing to a model."""


@dataclass(frozen=True)
class Pass:
    """One text through the target: `states` [layers + 1, T, H], `logits` [T, V]."""

    tokens: list[int]
    states: Tensor
    logits: Tensor


@torch.inference_mode()
def run_text(target: Target, tokens: Sequence[int]) -> Pass:
    """A causal forward over `tokens`, with every hidden state."""
    count = len(tokens)
    output = target.forward(
        torch.tensor(tokens),
        torch.arange(count),
        masks.causal_matrix(count),
        target.new_cache(count),
        tuple(range(target.num_layers + 1)),
    )
    assert output.features is not None
    states = output.features.view(count, target.num_layers + 1, -1).transpose(0, 1)
    return Pass(list(tokens), states, output.logits)


def check_numbers(engine: Engine, seen: Pass) -> Iterator[Finding]:
    """NaN, infinity, and how near the largest number of the format is."""
    target = engine.target
    dtype = str(target.dtype).removeprefix("torch.")
    limit = torch.finfo(target.dtype).max
    states = [state.float() for state in seen.states]
    broken = next((layer for layer, state in enumerate(states) if not bool(torch.isfinite(state).all())), None)
    if broken is not None or not bool(torch.isfinite(seen.logits).all()):
        where = f"layer {broken}" if broken is not None else "the logits"
        before = max((float(state.abs().max()) for state in states[:broken]), default=0.0)
        yield Finding(
            GROUP,
            "numbers",
            "error",
            f"NaN or infinity from {where} on",
            _overflow_cause(target, dtype, before),
            _overflow_remedy(target),
            {"layer": broken, "largest_before": before, "dtype": dtype},
        )
        return
    largest = max(float(state.abs().max()) for state in states)
    if largest > NEAR * limit:
        found = f"hidden states up to {largest:,.0f}, {dtype} ends at {limit:,.0f}"
        cause, remedy = "this model's numbers are large for this format", _overflow_remedy(target)
        yield Finding(GROUP, "numbers", "warning", found, cause, remedy, {"largest": largest})
    else:
        yield ok(GROUP, "numbers", f"finite in {dtype}, largest hidden state {largest:,.3g}", largest=largest)


def _overflow_cause(target: Target, dtype: str, before: float) -> str:
    damaged = [name for name, weight in target.model.named_parameters() if _broken(weight)]
    if damaged:
        return f"the weights themselves hold NaN or infinity: {', '.join(damaged[:3])}"
    if target.dtype == torch.float16:
        return f"{dtype} ends at {torch.finfo(target.dtype).max:,.0f}; the layer before reached {before:,.0f}"
    return f"a computation without a result in {dtype}"


def _broken(weight: Tensor) -> bool:
    return weight.is_floating_point() and not weight.is_meta and not bool(torch.isfinite(weight).all())


def _overflow_remedy(target: Target) -> str:
    if any(_broken(weight) for weight in target.model.parameters()):
        return "get the weights again, or load them in a format that holds them (--dtype bfloat16)"
    return "--dtype bfloat16" if target.dtype == torch.float16 else "--dtype float32"


@torch.inference_mode()
def check_head_numbers(engine: Engine, seen: Pass) -> Iterator[Finding]:
    """The same for the head, on the target's features."""
    head = engine.head
    if head is None or not bool(torch.isfinite(seen.states[-1].float()).all()):
        return
    logits = head_logits(engine, seen, head.spec.taps)
    if bool(torch.isfinite(logits).all()):
        yield ok(GROUP, "head numbers", f"finite, logits up to {float(logits.float().abs().max()):.3g}")
        return
    damaged = [name for name, weight in head.named_parameters() if _broken(weight)]
    dtype = str(engine.target.dtype).removeprefix("torch.")
    yield Finding(
        GROUP,
        "head numbers",
        "error",
        "the head's logits hold NaN or infinity",
        f"its weights hold them: {', '.join(damaged[:3])}" if damaged else f"its numbers are too large for {dtype}",
        "get the head again, or --dtype bfloat16" if engine.target.dtype == torch.float16 else "get the head again",
        {"weights": damaged[:3], "dtype": dtype},
    )


def head_logits(engine: Engine, seen: Pass, taps: Sequence[int]) -> Tensor:
    """The head's draft logits [T - 1, Vd] on features of these taps: row t predicts token t + 2."""
    head = engine.head
    assert head is not None
    features = torch.cat([seen.states[tap] for tap in taps], dim=-1)[:-1]
    count = features.shape[0]
    hidden = head(
        torch.tensor(seen.tokens[1:], device=head.device),
        head.fuse(features),
        torch.arange(count, device=head.device),
        masks.causal_matrix(count).to(head.device),
        head.new_cache(count),
    )
    return head.logits(hidden)


def check_understanding(engine: Engine) -> Iterator[Finding]:
    """Whether plain English means something to the target: its tokens must be the ones it was trained with."""
    target = engine.target
    tokens = engine.chat.encode_text(PLAIN_ENGLISH)
    if len(tokens) < 2 or max(tokens) >= target.vocab_size or len(tokens) > target.context_limit:
        return  # said by other checks
    surprise = mean_surprise(run_text(target, tokens).logits, tokens)
    if not math.isfinite(surprise):
        return
    blind = math.log(target.vocab_size)
    figures = {"nats": surprise, "blind": blind}
    if surprise > SURPRISED * blind:
        yield Finding(
            GROUP,
            "tokenizer",
            "warning",
            f"plain English surprises the target: {surprise:.1f} nats a token, a blind guess has {blind:.1f}",
            "the tokenizer is another model's, or the weights are random or damaged",
            "put the tokenizer of this target into its folder, or get the model again",
            figures,
        )
    else:
        yield ok(GROUP, "tokenizer", f"plain English takes {surprise:.1f} nats a token (blind: {blind:.1f})", **figures)


def mean_surprise(logits: Tensor, tokens: Sequence[int]) -> float:
    """Mean of -log p of each token after the first, in nats, from logits [T, V]."""
    loss = torch.nn.functional.cross_entropy(logits[:-1].float(), torch.tensor(tokens[1:], device=logits.device))
    return float(loss)
