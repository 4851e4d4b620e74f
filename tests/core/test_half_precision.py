"""Every architecture in bfloat16 and float16: decoding ends, and parts from plain decoding only where the target's own
rounding decides between two tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_chat.bench.judge import PIECES, Reference, answer_rows
from eagle_chat.core.events import Finished
from eagle_chat.core.target import Target
from tests import tiny, zoo
from tests.core.test_architectures import GREEDY, NUM_TOKENS, PROMPT, TREE, draft

FEW = 4.0
"""Ulps between the two logits of a tie that needs no further explanation. (Measured: 2 at most.)"""
HEADS = ("eagle", "eagle3", "mix")
QUICK = {("llama", "sdpa"), ("gemma3", "sdpa"), ("mixtral", "sdpa"), ("gpt-oss", "eager")}
"""A plain target, windows and many norms, experts, sinks: always run, in bfloat16. The rest takes minutes."""
CASES = [
    pytest.param(
        name, way, dtype, marks=[] if (name, way) in QUICK and dtype == torch.bfloat16 else pytest.mark.slow,
        id=f"{name}-{way}-{str(dtype).removeprefix('torch.')}",
    )
    for name, way in zoo.PAIRS
    for dtype in (torch.bfloat16, torch.float16)
]  # fmt: skip


def decode(target: Target, kind: str | None, script: list[int]) -> list[int]:
    """One answer, which must end by its budget and not by a broken row."""
    head = None if kind is None else draft(kind, target, script)
    events = list(
        tiny.make_engine(target, head).stream(PROMPT, sampling=GREEDY, tree=tiny.PLAIN if kind is None else TREE)
    )
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "length"
    tokens = tiny.tokens_of(events)
    assert len(tokens) == NUM_TOKENS
    return tokens


def first_difference(target: Target, plain: list[int], found: list[int]) -> tuple[str, float]:
    """What a first difference is, and the gap of its two logits in ulps.

    "equal"; "few": a tie within `FEW` ulps; "own": the target itself chooses either token when it computes the text in
    other pieces (a router that turns to other experts moves logits by more than a few ulps); else "fault".
    """
    at = next((index for index, pair in enumerate(zip(plain, found, strict=True)) if pair[0] != pair[1]), None)
    if at is None:
        return "equal", 0.0
    judged = Reference(target, PROMPT, plain, GREEDY).judge(at, (plain[at], found[at]))
    assert judged.gap_ulps is not None
    if judged.verdict == "tie" and judged.gap_ulps <= FEW:
        return "few", judged.gap_ulps
    rows = (answer_rows(target, PROMPT, plain, piece)[at] for piece in (*PIECES, None))
    own = {int(row.argmax()) for row in rows}
    return ("own" if {plain[at], found[at]} <= own else "fault"), judged.gap_ulps


@pytest.mark.parametrize(("name", "attention", "dtype"), CASES)
@torch.inference_mode()
def test_half_precision(name: str, attention: str, dtype: torch.dtype, record_property: Any) -> None:
    target = zoo.target(name, attention, dtype)
    plain = decode(target, None, [])
    assert torch.isfinite(answer_rows(target, PROMPT, plain)).all()
    for kind in HEADS:
        verdict, gap = first_difference(target, plain, decode(target, kind, PROMPT + plain))
        record_property(kind, f"{verdict} {gap:.2f}")
        assert verdict != "fault", f"{kind}: a gap of {gap:.1f} ulps"


@pytest.mark.parametrize(("name", "attention"), sorted(QUICK))
@torch.inference_mode()
def test_a_wrong_mask_is_no_tie(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judgement above can fail: a tree whose nodes see their elder siblings gives faults."""
    target = Target(zoo.make_model(name, attention, torch.bfloat16), name, fast=False)
    plain = decode(target, None, [])
    real = target._mask

    def wrong(among_new: torch.Tensor, *rest: Any) -> Any:
        return real(torch.ones_like(among_new).tril(), *rest)

    monkeypatch.setattr(target, "_mask", wrong)
    found = decode(target, "mix", PROMPT + plain)
    monkeypatch.undo()
    assert first_difference(target, plain, found)[0] == "fault"
