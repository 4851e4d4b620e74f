"""The draft never changes what the target says: every draft, policy and architecture against plain decoding."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target
from tests import tiny

NUM_TOKENS = 64
GREEDY = SamplingConfig(max_new_tokens=NUM_TOKENS)
TREES = {
    "dynamic": TreeConfig("dynamic", depth=4, top_k=3, total_tokens=14),
    "static": TreeConfig("static"),
    "chain": TreeConfig("chain", depth=4),
}
DRAFTS = ("eagle", "eagle3", "oracle", "anti", "mix")
OTHERS = [name for name in tiny.ARCHITECTURES if name != "llama"]


@functools.cache
def target_of(architecture: str, attention: str = "sdpa") -> Target:
    return tiny.make_target(architecture, attention)


@functools.cache
def random_head(architecture: str, kind: str) -> DraftHead:
    return tiny.make_head(kind, target_of(architecture), draft_vocab=60 if kind == "eagle3" else tiny.VOCAB)


def draft(architecture: str, name: str, script: list[int]) -> DraftHead:
    if name in tiny.STUBS:
        return tiny.StubHead(target_of(architecture), script, tiny.STUBS[name])
    return random_head(architecture, name)


def plain(architecture: str, prompt: list[int], sampling: SamplingConfig) -> list[int]:
    return list(_plain(architecture, tuple(prompt), sampling))


@functools.cache
def _plain(architecture: str, prompt: tuple[int, ...], sampling: SamplingConfig) -> list[int]:
    return tiny.answer(tiny.make_engine(target_of(architecture)), prompt, sampling=sampling, tree=tiny.PLAIN)


def check(architecture: str, prompt: list[int], name: str, policy: str, sampling: SamplingConfig) -> None:
    expected = plain(architecture, prompt, sampling)
    engine = tiny.make_engine(target_of(architecture), draft(architecture, name, prompt + expected))
    found = tiny.answer(engine, prompt, sampling=sampling, tree=TREES[policy])
    assert found == expected, f"{architecture}, {name}, {policy}, {sampling}"


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_plain_decoding_is_what_generate_does(architecture: str) -> None:
    target = target_of(architecture)
    for prompt in tiny.prompts(5 if architecture == "llama" else 2):
        assert plain(architecture, prompt, GREEDY) == tiny.generate(target.model, prompt, NUM_TOKENS)


@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize("name", DRAFTS)
def test_greedy_equals_plain(name: str, policy: str) -> None:
    for prompt in tiny.prompts(5):
        check("llama", prompt, name, policy, GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize("name", DRAFTS)
def test_greedy_equals_plain_on_many_prompts(name: str, policy: str) -> None:
    for prompt in tiny.prompts(50):
        check("llama", prompt, name, policy, GREEDY)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize("name", ["eagle3", "oracle", "mix"])
def test_coupled_sampling_equals_plain_with_the_same_seed(name: str, policy: str, temperature: float) -> None:
    for seed, prompt in enumerate(tiny.prompts(2)):
        sampling = SamplingConfig(temperature, seed=seed, max_new_tokens=NUM_TOKENS)
        check("llama", prompt, name, policy, sampling)


@pytest.mark.parametrize("warpers", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.9}])
def test_coupled_sampling_equals_plain_under_every_warper(warpers: dict[str, Any]) -> None:
    check("llama", tiny.prompts(1)[0], "mix", "dynamic", SamplingConfig(1.0, seed=5, max_new_tokens=32, **warpers))


@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize("name", ["eagle3", "eagle", "mix"])
@pytest.mark.parametrize("architecture", OTHERS)
def test_every_architecture_greedy(architecture: str, name: str, policy: str) -> None:
    check(architecture, tiny.prompts(1, length=30)[0], name, policy, SamplingConfig(max_new_tokens=32))


@pytest.mark.parametrize("architecture", OTHERS)
def test_every_architecture_sampled(architecture: str) -> None:
    check(architecture, tiny.prompts(1)[0], "mix", "dynamic", SamplingConfig(0.9, seed=1, max_new_tokens=32))


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma3"])
def test_eager_and_sdpa_agree(architecture: str) -> None:
    prompt = tiny.prompts(1, length=30)[0]
    expected = plain(architecture, prompt, GREEDY)
    eager = target_of(architecture, "eager")
    engine = tiny.make_engine(eager, tiny.StubHead(eager, prompt + expected, tiny.STUBS["mix"]))
    assert tiny.answer(engine, prompt, sampling=GREEDY, tree=TREES["dynamic"]) == expected


@pytest.mark.parametrize("policy", ["chain", "static"])
def test_rejection_with_an_oracle_keeps_to_the_target_support(policy: str) -> None:
    """Under top_k 1 the law is a point mass: whatever rule draws from it must give the greedy text."""
    prompt = tiny.prompts(1)[0]
    sampling = SamplingConfig(1.0, top_k=1, seed=3, verify="rejection", max_new_tokens=NUM_TOKENS)
    expected = plain("llama", prompt, GREEDY)
    engine = tiny.make_engine(target_of("llama"), draft("llama", "mix", prompt + expected))
    assert tiny.answer(engine, prompt, sampling=sampling, tree=TREES[policy]) == expected


def test_bfloat16_differs_at_numerical_ties_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """In bf16 a tree forward may round differently than a plain one; then the two best logits must be neighbours."""
    model = tiny.make_model("llama", initializer_range=0.15).to(torch.bfloat16)
    target = Target(model, "tiny-bf16")
    gaps = []
    for prompt in tiny.prompts(6):
        sampling = SamplingConfig(max_new_tokens=NUM_TOKENS)
        expected = tiny.answer(tiny.make_engine(target), prompt, sampling=sampling)
        engine = tiny.make_engine(target, tiny.make_head("eagle3", target))
        found = tiny.answer(engine, prompt, sampling=sampling, tree=TREES["dynamic"])
        at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), None)
        if at is not None:
            gaps.append(tie_gap_in_ulps(model, prompt + expected[:at], expected[at], found[at]))
    with capsys.disabled():
        print(f"\n  bf16: {len(gaps)} of 6 answers differ, gaps at the first difference in ulps: {gaps}")
    assert all(gap <= 4 for gap in gaps)


@torch.inference_mode()
def tie_gap_in_ulps(model: Any, tokens: list[int], first: int, second: int) -> float:
    """Distance of two tokens' logits after `tokens`, in units of bf16's last place at their size."""
    logits = model(torch.tensor([tokens])).logits[0, -1].float()
    ulp = 2.0 ** (torch.log2(logits[[first, second]].abs().max()).floor().item() - 7)
    return abs(float(logits[first] - logits[second])) / ulp


def test_one_seed_rules_everything() -> None:
    prompt = tiny.prompts(1)[0]
    engine = tiny.make_engine(target_of("llama"), random_head("llama", "eagle3"))

    def run(seed: int, verify: Any) -> tuple[list[int], list[int]]:
        sampling = SamplingConfig(1.2, seed=seed, verify=verify, max_new_tokens=24)
        events = list(engine.stream(prompt, sampling=sampling, tree=TREES["chain"]))
        return tiny.tokens_of(events), [event.accepted for event in events if event.type == "committed"]

    for verify in ("coupled", "rejection"):
        assert run(1, verify) == run(1, verify)
        assert run(1, verify)[0] != run(2, verify)[0]
