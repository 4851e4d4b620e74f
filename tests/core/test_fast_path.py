"""The fast path computes what transformers computes, in every layout of its weights, and takes nothing away."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM

from eagle_chat.core import fast_compiled, fast_layers, fast_linear, fast_plan, fast_target, kernel_bf12, masks
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.fast_linear import Plan, layouts
from eagle_chat.core.fast_weights import PackedLinear
from eagle_chat.core.kernel_machine import Machine
from eagle_chat.core.kernels import Kernels, kernels
from eagle_chat.core.target import Target
from tests import tiny

PLANS = {
    "rows": Plan(),
    "columns": Plan("columns", "columns"),
    "packed": Plan("packed", "packed"),
    "panels": Plan("panels", "panels"),
    "two": Plan("columns", "packed"),
}
KNOWN = ("llama", "qwen3", "mistral-window", "qwen2")
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 3, 6, 6, 8, 2, 5, 12, 0, 14, 15, 16, 17, 18, 4, 4, 21, 22]


def model_of(architecture: str, **changes: Any) -> Any:
    if architecture != "qwen2":
        return tiny.make_model(architecture, **changes)
    config = transformers.Qwen2Config(**{**tiny.COMMON, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():  # transformers begins with biases of 0, which would test nothing
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)
    return model


def fast_target_of(architecture: str, monkeypatch: pytest.MonkeyPatch, plan: Plan, **changes: Any) -> Target:
    if not set(plan.layouts) <= set(layouts(torch.zeros(64, 64))):
        pytest.skip("this build of torch, or this processor, does not have that layout")
    monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: plan)
    target = Target(model_of(architecture, **changes), "fast")
    assert target._fast_path() is not None
    return target


@torch.inference_mode()
def run_tree(target: Target, prefix: list[int], count: int, taps: tuple[int, ...]) -> Any:
    cache = target.new_cache(16)  # smaller than what follows, so that it grows
    target.forward(torch.tensor(prefix), torch.arange(len(prefix)), masks.causal_matrix(len(prefix)), cache)
    cache.commit(list(range(len(prefix))))
    parents = PARENTS[:count] if count <= len(PARENTS) else list(range(-1, count - 1))
    positions = torch.tensor(masks.depths(parents)) + len(prefix)
    cache.reserve(len(prefix) + count)
    tokens = torch.arange(count) % 90 + 3
    return target.forward(tokens, positions, masks.ancestor_matrix(parents), cache, taps)


def same_within_rounding(found: torch.Tensor, expected: torch.Tensor) -> None:
    """What fp32 loses in eight layers goes by the size of the sums, which is that of the largest results."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=5e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("architecture", KNOWN)
def test_logits_and_features_are_those_of_the_general_path(
    architecture: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one row, small and large trees, and more rows than are folded; behind a prefix longer than the window."""
    general = Target(model_of(architecture), "general", fast=False)
    fast = fast_target_of(architecture, monkeypatch, PLANS[plan])
    for count in (1, 2, 8, 16, 24, 70):
        prefix, taps = tiny.prompts(1, 30)[0], (0, 4, 8)
        expected, found = (run_tree(target, prefix, count, taps) for target in (general, fast))
        same_within_rounding(found.logits, expected.logits)
        same_within_rounding(found.features, expected.features)


WHOLE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 64}
"""Sizes that fit the vectors of every processor."""


@pytest.mark.parametrize("architecture", KNOWN)
def test_compiled_layers_compute_the_same(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind prefixes of every length modulo a vector, and after the cache has moved; also in what is kept there."""
    general = Target(model_of(architecture, **WHOLE), "general", fast=False)
    fast = fast_target_of(architecture, monkeypatch, PLANS["panels"], **WHOLE)
    path = fast._fast_path()
    assert path is not None
    assert (path._compiled is None) == (architecture == "qwen3")  # which norms queries and keys
    if path._compiled is not None:
        calls = []
        run = path._compiled.run
        monkeypatch.setattr(path._compiled, "run", lambda *inputs: calls.append(run(*inputs)) or calls[-1])
        for count, length in ((1, 30), (2, 31), (8, 32), (24, 33), (16, 41), (64, 30)):
            prefix, taps = tiny.prompts(1, length)[0], (0, 4, 8)
            expected, found = (run_tree(target, prefix, count, taps) for target in (general, fast))
            same_within_rounding(found.logits, expected.logits)
            same_within_rounding(found.features, expected.features)
        assert sum(states is not None for states in calls) == 6  # the prefill is left to torch


@pytest.mark.parametrize("length", [3, 30, 47])
def test_a_row_is_the_same_to_the_last_bit_with_any_threads_and_rows(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the queries are shared out among units: drafted text is plain text in bfloat16 because of this."""
    if kernels() is None:
        pytest.skip("no kernels for this processor")
    fast = fast_target_of("llama", monkeypatch, PLANS["panels"], **WHOLE)
    before, prefix = torch.get_num_threads(), tiny.prompts(1, length)[0]
    try:
        torch.set_num_threads(1)
        alone = run_tree(fast, prefix, 1, (8,)).features
        for count in (2, 3, 8, 24):
            features = []
            for threads in (1, 2, 3, 5):
                torch.set_num_threads(threads)
                features.append(run_tree(fast, prefix, count, (8,)).features)
            assert torch.equal(features[0][:1], alone)
            assert all(torch.equal(one, features[0]) for one in features)
    finally:
        torch.set_num_threads(before)


def test_trees_are_compiled_where_single_rows_have_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels() is None:
        pytest.skip("no kernels for this processor")
    general = Target(model_of("llama", **WHOLE), "general", fast=False)
    fast = fast_target_of("llama", monkeypatch, Plan("columns", "panels"), **WHOLE)
    path = fast._fast_path()
    assert path is not None
    assert path._compiled is not None
    run, calls = path._compiled.run, []
    monkeypatch.setattr(path._compiled, "run", lambda *inputs: calls.append(run(*inputs)) or calls[-1])
    for count in (1, 2, 8):
        expected, found = (run_tree(target, tiny.prompts(1, 30)[0], count, (0, 8)) for target in (general, fast))
        same_within_rounding(found.logits, expected.logits)
        same_within_rounding(found.features, expected.features)
    assert [states is not None for states in calls] == [False, False, False, True, False, True]  # every other: prefill


@pytest.mark.parametrize("machine", [Machine(16, 32), Machine(8, 16), Machine(4, 32)], ids=lambda one: f"{one.lanes}")
def test_compiled_layers_of_every_processor(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of other lengths than this processor's are split or joined by LLVM, so their code can be run here too."""
    if kernels() is None:
        pytest.skip("no kernels for this processor")
    compiled = Kernels(machine)
    for module in (fast_linear, fast_layers, fast_compiled):
        monkeypatch.setattr(module, "kernels", lambda: compiled)
    general = Target(model_of("llama", **WHOLE), "general", fast=False)
    fast = fast_target_of("llama", monkeypatch, PLANS["panels"], **WHOLE)
    path = fast._fast_path()
    assert path is not None
    assert path._compiled is not None
    for count, length in ((1, 30), (9, 33), (24, 47)):
        prefix = tiny.prompts(1, length)[0]
        expected, found = (run_tree(target, prefix, count, (0, 8)) for target in (general, fast))
        same_within_rounding(found.logits, expected.logits)
        same_within_rounding(found.features, expected.features)


def test_a_layer_has_all_its_weights_in_12_bits_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one matrix of a layer has too wide a range, the layer is compiled for whole weights; the others are not."""
    if kernels() is None:
        pytest.skip("no kernels for this processor")
    monkeypatch.setattr(kernel_bf12, "MOST_EXCEPTIONS", 0.5)  # those of such small panels count for more
    monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: PLANS["panels"])
    model = model_of("llama", **WHOLE).to(torch.bfloat16)
    down = model.model.layers[1].mlp.down_proj.weight
    with torch.no_grad():
        down.mul_(2.0 ** torch.randint(-40, 1, down.shape))
    general = Target(copy.deepcopy(model).float(), "general", fast=False)
    fast = Target(model, "fast")
    path = fast._fast_path()
    assert path is not None
    assert path._compiled is not None
    kinds = [{matrix.many.panels.dtype for matrix in layer.matrices} for layer in path._layers]
    assert kinds[1] == {torch.bfloat16}
    assert kinds[0] == kinds[2] == {torch.uint8}
    for count, length in ((1, 30), (9, 33), (24, 47)):
        prefix = tiny.prompts(1, length)[0]
        expected, found = (run_tree(target, prefix, count, (0, 8)) for target in (general, fast))
        same_within_rounding(found.features, expected.features)
    assert torch.equal(
        model.model.layers[1].mlp.down_proj.weight.float(), general.model.model.layers[1].mlp.down_proj.weight
    )
    assert torch.equal(
        model.model.layers[0].mlp.up_proj.weight.float(), general.model.model.layers[0].mlp.up_proj.weight
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_drafts_are_lossless(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 too: sums are in float32, and a row's do not depend on the other rows. The vocabulary is one of whole
    panels, or the LM head would round to bfloat16."""
    monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: PLANS["panels"])
    monkeypatch.setattr(tiny, "VOCAB", 96)
    if kernels() is None:
        pytest.skip("no kernels for this processor")
    target = Target(model_of("llama", **WHOLE, vocab_size=96).to(dtype), "fast")
    sampling = SamplingConfig(max_new_tokens=48)
    for prompt in tiny.prompts(3, seed=11):
        expected = tiny.answer(tiny.make_engine(target, None), prompt, sampling=sampling, tree=tiny.PLAIN)
        for kind in ("eagle", "eagle3"):
            head = tiny.make_head(kind, target, draft_vocab=96, head_dim=64).to(dtype)
            engine = tiny.make_engine(target, head)
            for tree in (TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16), TreeConfig("chain", depth=3)):
                assert tiny.answer(engine, prompt, sampling=sampling, tree=tree) == expected
            with torch.inference_mode():
                fast = head.fast_path()
            assert fast is not None
            assert fast.compiled is not None


@pytest.mark.parametrize("plan", PLANS)
def test_the_answer_is_that_of_generate_with_and_without_a_draft(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = tiny.prompts(1, seed=11)[0]
    expected = tiny.generate(tiny.make_model("llama"), prompt, 48)
    target = fast_target_of("llama", monkeypatch, PLANS[plan])
    sampling = SamplingConfig(max_new_tokens=48)
    for kind in ("eagle", "eagle3"):
        engine = tiny.make_engine(target, tiny.make_head(kind, target))
        for tree in (
            tiny.PLAIN,
            TreeConfig("dynamic", depth=4, top_k=4, total_tokens=16),
            TreeConfig("chain", depth=3),
        ):
            assert tiny.answer(engine, prompt, sampling=sampling, tree=tree) == expected


@pytest.mark.parametrize("plan", PLANS)
def test_a_row_does_not_depend_on_how_many_there_are(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels differ by the number of rows. On a model of real widths the logits of a token must agree within fp32
    rounding whether it runs alone or among 8, 16 or 24, so that only ties could fall differently."""
    target = fast_target_of(
        "llama", monkeypatch, PLANS[plan], hidden_size=192, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=6, num_key_value_heads=2, head_dim=32, initializer_range=0.05,
    )  # fmt: skip
    prefix = tiny.prompts(1, 30)[0]
    alone = run_tree(target, prefix, 1, ()).logits[0]
    for count in (8, 16, 24):
        among = run_tree(target, prefix, count, ()).logits[0]
        torch.testing.assert_close(among, alone, rtol=1e-4, atol=1e-5)
        best = alone.topk(2).values
        assert int(among.argmax()) == int(alone.argmax()) or float(best[0] - best[1]) < 1e-4


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("architecture", KNOWN)
def test_the_model_stays_what_it_was(architecture: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its weights were taken over the model itself still runs, for whoever holds it."""
    ids = torch.tensor(tiny.prompts(1, 12))
    untouched, target = model_of(architecture), fast_target_of(architecture, monkeypatch, PLANS[plan])
    run_tree(target, ids[0].tolist(), 3, ())
    with torch.inference_mode():
        same_within_rounding(target.model(ids).logits, untouched(ids).logits)
    output = target.model(ids, output_hidden_states=True)  # and can be trained through, which inference tensors cannot
    output.logits.sum().backward()


def test_dense_layouts_are_shared_and_packed_ones_replace_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = tiny.make_model("llama").model.layers[0].self_attn.k_proj.weight
    for plan in ("rows", "columns", "two"):
        target = fast_target_of("llama", monkeypatch, PLANS[plan])
        layer, fast = target.model.model.layers[0].self_attn, target._fast_path()
        assert fast is not None
        matrix = fast._layers[0]._qkv
        assert layer.k_proj.weight.untyped_storage().data_ptr() == matrix.dense.untyped_storage().data_ptr()
        assert torch.equal(layer.k_proj.weight, weight)
        assert matrix.extra_bytes == (matrix.num_bytes if plan == "two" else 0)
    target = fast_target_of("llama", monkeypatch, PLANS["packed"])
    packed = target.model.model.layers[0].self_attn.k_proj
    assert isinstance(packed, PackedLinear)
    assert torch.equal(packed.weight, weight)
    assert "k_proj" not in " ".join(name for name, _ in target.model.named_parameters())


def test_what_is_not_known_runs_on_the_general_path() -> None:
    assert not any(fast_target.supports(tiny.make_model(name)) for name in ("gemma3", "mixtral"))
    assert not fast_target.supports(tiny.make_model("llama", hidden_act="gelu"))
    assert not fast_target.supports(tiny.make_model("llama").half())
    model = tiny.make_model("llama")
    assert fast_target.supports(model)
    assert fast_target.supports(model.bfloat16())

    class Adapted(nn.Linear):
        """As adapters and quantised layers are: a linear layer of a class of its own."""

    model.model.layers[3].mlp.up_proj = Adapted(32, 64, bias=False, dtype=torch.bfloat16)
    assert not fast_target.supports(model)
    moved = tiny.make_model("llama")
    moved.model.layers[0]._hf_hook = object()  # accelerate moves the layer's inputs
    assert not fast_target.supports(moved)
    assert Target(tiny.make_model("gemma3"), "x")._fast_path() is None


def test_bfloat16_is_as_near_to_float32_as_the_general_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_plan.Planner, "plan", lambda *_: Plan())
    prefix = tiny.prompts(1, 20)[0]
    exact = run_tree(Target(tiny.make_model("llama", initializer_range=0.1), "x", fast=False), prefix, 16, ()).logits
    errors = []
    for fast in (False, True):
        target = Target(tiny.make_model("llama", initializer_range=0.1).bfloat16(), "x", fast=fast)
        assert (target._fast_path() is not None) == fast
        errors.append(float((run_tree(target, prefix, 16, ()).logits.float() - exact).abs().mean()))
    assert errors[1] < 1.3 * errors[0]
