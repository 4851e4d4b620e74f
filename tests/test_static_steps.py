"""The CUDA program's steps of fixed shape, on a CPU: the same tokens as transformers, and the oracle's figures."""

from __future__ import annotations

import argparse

import pytest
import torch
from torch import Tensor

from bench import gpu
from bench.static_cycle import Cycle, PlainStep, walk
from bench.static_steps import StaticHead, StaticLlama
from tests import tiny

TAPS = (2, 4, 5)


@torch.inference_mode()
def started(model: object, prompt: list[int], capacity: int = 128) -> tuple[StaticLlama, Tensor, int]:
    """The target with `prompt` committed, its features, and the token after it."""
    target = StaticLlama.of(model, capacity)
    count = len(prompt)
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    logits, features = target.forward(torch.tensor(prompt), torch.arange(count), causal, TAPS)
    target.room.length.fill_(count)
    return target, features, int(logits[-1].argmax())


@torch.inference_mode()
def speculate(model: object, prompt: list[int], num_tokens: int, depth: int, top_k: int, nodes: int) -> list[list[int]]:
    """Cycles of tokens by the static program, with the true walk."""
    target, features, first = started(model, prompt)
    torch.manual_seed(1)
    head = StaticHead(target, target.shape.vocab, 128)
    cycle = Cycle(target, head, TAPS, depth, top_k, nodes, oracle=False)
    # The prompt's features go in one by one, as if every cycle had accepted nothing.
    for place, (row, token) in enumerate(zip(features, [*prompt[1:], first], strict=True)):
        cycle.features[0], cycle.fed[0] = row, token
        if place < len(prompt) - 1:
            cycle.draft()
    cycle.root.fill_(first)
    cycles = [[first]]
    while sum(map(len, cycles)) < num_tokens:
        cycle.draft()
        cycle.verify()
        count, *tokens = cycle.out.tolist()
        cycles.append(tokens[:count])
    return cycles


@pytest.mark.parametrize(("depth", "top_k", "nodes"), [(1, 3, 4), (3, 3, 8), (4, 4, 16)])
def test_the_static_cycle_says_what_generate_says(depth: int, top_k: int, nodes: int) -> None:
    """With few tokens a random head is right now and then, so that paths of several lengths are committed."""
    model = tiny.make_model("llama", vocab_size=12, initializer_range=0.5)
    prompt = [3, 5, 7, 4, 9]
    cycles = speculate(model, prompt, 48, depth, top_k, nodes)
    found = [token for tokens in cycles for token in tokens]
    assert found[:48] == tiny.generate(model, prompt, 48)
    assert max(map(len, cycles)) > 1  # otherwise only plain steps were tested


@torch.inference_mode()
def test_the_static_plain_step_says_what_generate_says() -> None:
    model = tiny.make_model("llama")
    prompt = tiny.prompts(1)[0]
    target, _, first = started(model, prompt)
    step = PlainStep(target, TAPS)
    step.root.fill_(first)
    found = [first]
    for _ in range(20):
        step.run()
        found.append(int(step.root))
    assert found == tiny.generate(model, prompt, 21)


def test_the_walk_follows_the_choices_or_the_oracle() -> None:
    tokens, parents = torch.tensor([1, 5, 6, 7, 8]), torch.tensor([-1, 0, 0, 2, 3])
    path, count = walk(tokens, parents, torch.tensor([6, 0, 7, 9, 0]), 3, None)
    assert (path.tolist(), count.tolist()) == ([0, 2, 3, 3], [3])
    path, count = walk(tokens, parents, torch.tensor([4, 0, 0, 0, 0]), 3, None)
    assert (path.tolist(), count.tolist()) == ([0, 0, 0, 0], [1])
    path, count = walk(tokens, parents, torch.zeros(5, dtype=torch.int64), 3, torch.tensor([2]))
    assert (path.tolist(), count.tolist()) == ([0, 1, 1, 1], [2])  # node 1 has no child to accept


@pytest.mark.parametrize(("tau", "depth", "mean"), [(1.0, 8, 0.0), (3.5, 8, 2.5), (4.0, 2, 2.0)])
def test_the_oracle_accepts_what_was_asked(tau: float, depth: int, mean: float) -> None:
    plan = gpu.oracle_plan(tau, 200, depth)
    assert sum(plan) / 200 == pytest.approx(mean, abs=0.01)
    assert max(plan) - min(plan) <= 1


def test_c_and_speedup_from_known_times() -> None:
    times = {"plain": [10.0, 10.0, 99.0], "draft": [1.0], "verify": [11.0]}
    found = gpu.report(times, {"cycle": 12.5, "plain": 10.0}, tokens=40, cycles=10)
    assert found["c"] == pytest.approx(0.25)
    assert found["c_device"] == {"total": pytest.approx(0.2), "draft": pytest.approx(0.1), "verify": pytest.approx(0.1)}
    assert (found["tau"], found["speedup"]) == (4.0, pytest.approx(3.2))


def test_the_program_runs_on_a_small_model() -> None:
    options = argparse.Namespace(
        device="cpu", tiny=True, nodes=12, depth=4, top_k=3, context=40, tau=2.5, cycles=8, floor_only=False
    )  # fmt: skip
    found = gpu.measure(options)
    assert found["engine"]["refused"] == {"target": None, "head": None}
    assert found["engine"]["wall_ms"].keys() == {"cycle", "plain"}
    assert found["tau"] == pytest.approx(2.5, abs=0.2)
    assert set(found["device_ms"]) == {"plain", "draft", "verify"}


@pytest.mark.gpu
def test_nothing_is_allocated_in_a_cycle() -> None:
    options = argparse.Namespace(
        device="cuda", tiny=True, nodes=60, depth=8, top_k=10, context=512, tau=4.0, cycles=20, floor_only=True
    )  # fmt: skip
    assert gpu.measure(options)["allocations_a_cycle"] == 0
