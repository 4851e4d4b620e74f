"""Batched decoding equals decoding one by one; draws follow the law and their key."""

from __future__ import annotations

import pytest
import torch

from eagle_chat.training.decode import Request, continue_all, draw
from tests.tiny import generate, make_target, prompts


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral-window", "gemma3", "mixtral"])
def test_padded_rows_equal_the_models_own_answers(architecture: str) -> None:
    target = make_target(architecture)
    texts = [prompt[: 3 + at] for at, prompt in enumerate(prompts(5, 14))]
    found = continue_all(target, [Request(tuple(text), str(at)) for at, text in enumerate(texts)], (), 20, seed=0)
    for text, continuation in zip(texts, found, strict=True):
        assert list(continuation.tokens) == generate(target.model, text, 20)
        assert not continuation.ended


def test_rows_that_end_leave_the_batch_and_disturb_nobody() -> None:
    target = make_target()
    texts = [tuple(prompt[: 4 + at % 5]) for at, prompt in enumerate(prompts(12, 9))]
    whole = [generate(target.model, text, 24) for text in texts]
    stops = {answer[3 + 2 * at] for at, answer in enumerate(whole[:2])}
    found = continue_all(target, [Request(text, str(at)) for at, text in enumerate(texts)], stops, 24, seed=0)
    for answer, continuation in zip(whole, found, strict=True):
        end = next((at for at, token in enumerate(answer) if token in stops), None)
        assert list(continuation.tokens) == answer[:end]
        assert continuation.ended == (end is not None)
    assert {continuation.ended for continuation in found} == {True, False}


def test_a_sampled_text_depends_on_seed_and_key_and_not_on_its_neighbours() -> None:
    target = make_target()
    requests = [Request(tuple(prompt), f"key {at}", 1.0) for at, prompt in enumerate(prompts(4, 6))]
    together = continue_all(target, requests, (), 12, seed=5)
    alone = [continue_all(target, [request], (), 12, seed=5)[0] for request in requests]
    assert together == alone
    assert together != continue_all(target, requests, (), 12, seed=6)
    same_prompt = [Request(requests[0].tokens, f"other {at}", 1.0) for at in range(8)]
    assert len({one.tokens for one in continue_all(target, same_prompt, (), 12, seed=5)}) > 1


def test_draws_follow_the_law() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -30.0]]).expand(20000, -1)
    uniform = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(20000)
    counts = draw(logits, 0.7 * ones, 0 * ones, uniform).bincount(minlength=5) / 20000
    assert torch.allclose(counts, (logits[0] / 0.7).softmax(-1), atol=0.012)
    cut = draw(logits, ones, 0.2 * ones, uniform)
    assert set(cut.tolist()) == {0, 1}
    mixed = draw(logits[:2], torch.tensor([0.0, 1.0]), torch.zeros(2), torch.tensor([0.99, 0.99]))
    assert mixed.tolist() == [0, 3]


def test_no_requests_no_answers() -> None:
    assert continue_all(make_target(), [], (), 5, seed=0) == []
