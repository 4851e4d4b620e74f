"""Every architecture that is promised, with both heads and both ways of attention; and those that cannot work."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from eagle_chat.core import architectures, masks
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target
from tests import tiny, zoo

NUM_TOKENS = 16
GREEDY = SamplingConfig(max_new_tokens=NUM_TOKENS)
SAMPLED = SamplingConfig(0.8, seed=2, max_new_tokens=NUM_TOKENS)
TREE = TreeConfig("dynamic", depth=3, top_k=4, total_tokens=12)
PROMPT = tiny.prompts(1, length=21)[0]
"""Longer than the windows, and not a multiple of the blocks."""


@functools.cache
def plain(name: str, attention: str, sampling: SamplingConfig = GREEDY) -> list[int]:
    return tiny.answer(tiny.make_engine(zoo.target(name, attention)), PROMPT, sampling=sampling, tree=tiny.PLAIN)


def draft(kind: str, target: Target, script: list[int]) -> DraftHead:
    if kind == "mix":
        return tiny.StubHead(target, script, lambda at: (0, 2, None)[at % 3])
    return tiny.make_head(kind, target, draft_vocab=60 if kind == "eagle3" else tiny.VOCAB)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mix"])
@pytest.mark.parametrize(("name", "attention"), zoo.PAIRS)
def test_lossless(name: str, attention: str, kind: str) -> None:
    """Greedy, token for token; `mix` is right, second best or wrong in turn, so that branches are taken and left."""
    expected, target = plain(name, attention), zoo.target(name, attention)
    engine = tiny.make_engine(target, draft(kind, target, PROMPT + expected))
    events = list(engine.stream(PROMPT, sampling=GREEDY, tree=TREE))
    assert tiny.tokens_of(events) == expected
    accepted = [event.accepted for event in events if isinstance(event, Committed)]
    if kind == "mix":
        assert max(accepted) >= 2
        assert 0 in accepted[1:]


@pytest.mark.parametrize(("name", "attention"), zoo.PAIRS)
def test_plain_decoding_is_what_generate_does(name: str, attention: str) -> None:
    expected = plain(name, attention)
    assert expected == tiny.generate(zoo.target(name, attention).model, PROMPT, NUM_TOKENS)
    assert len(set(expected)) > 4, "an answer that repeats itself would hide faults"


@pytest.mark.parametrize("name", zoo.CONFIGS)
def test_sampling_with_one_seed_is_lossless(name: str) -> None:
    expected, target = plain(name, "eager", SAMPLED), zoo.target(name)
    engine = tiny.make_engine(target, draft("mix", target, PROMPT + expected))
    assert tiny.answer(engine, PROMPT, sampling=SAMPLED, tree=TREE) == expected


@pytest.mark.parametrize("name", [name for name in zoo.CONFIGS if name not in zoo.EAGER_ONLY])
def test_eager_and_sdpa_agree(name: str) -> None:
    assert plain(name, "eager") == plain(name, "sdpa")


@pytest.mark.parametrize("name", zoo.EAGER_ONLY)
def test_transformers_takes_eager_where_it_has_no_sdpa(name: str) -> None:
    assert zoo.make_model(name).config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="does not support"):
        zoo.make_model(name, "sdpa")


@pytest.mark.parametrize("name", zoo.CONFIGS)
@torch.inference_mode()
def test_taps_are_the_inputs_of_layers_and_the_last_is_what_the_lm_head_reads(name: str) -> None:
    """Seen from inside the model, by hooks, and not by transformers' own list."""
    target = Target(zoo.target(name).model, name, fast=False)  # where no module runs, no hook does
    seen: list[torch.Tensor] = []

    def note(_layer: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        seen.append(args[0] if args else given["hidden_states"])

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in target.model.model.layers]
    hooks.append(target.model.model.norm.register_forward_hook(lambda _m, _i, output: seen.append(output)))
    count = len(PROMPT)
    output = target.forward(
        torch.tensor(PROMPT), torch.arange(count), masks.causal_matrix(count), target.new_cache(count), (0, 1, 2, 3)
    )
    for hook in hooks:
        hook.remove()
    assert len(seen) == 4
    torch.testing.assert_close(output.features, torch.cat([state[0] for state in seen], dim=-1))
    torch.testing.assert_close(target.lm_head(seen[-1][0]), output.logits)


@pytest.mark.parametrize("name", zoo.CONFIGS)
def test_the_trial_run_passes_what_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "TESTED", frozenset())
    architectures.check_by_running(zoo.target(name))


def test_tested_are_those_of_the_zoo() -> None:
    assert {zoo.target(name).config.model_type for name in zoo.CONFIGS} == architectures.TESTED


def test_longrope_ends_the_context_where_its_angles_change() -> None:
    target = zoo.target("phi3-longrope")
    assert target.config.max_position_embeddings == 256
    assert target.context_limit == 96
    events = list(tiny.make_engine(target).stream(tiny.prompts(1, length=90)[0], sampling=GREEDY))
    assert tiny.reason_of(events) == "context"
    assert len(tiny.tokens_of(events)) == 6


# What cannot work.

RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {"state_size": 4}),
    "rwkv": ("RwkvConfig", {"attention_hidden_size": 32}),
    "qwen3_next": ("Qwen3NextConfig", {"num_experts": 4, "num_experts_per_tok": 2}),
    "recurrent_gemma": ("RecurrentGemmaConfig", {"lru_width": 32}),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_states_are_refused(name: str) -> None:
    kind, own = RECURRENT[name]
    config = getattr(transformers, kind)(**{**tiny.COMMON, **zoo.SMALL, **own})
    with pytest.raises(UserError, match=rf"found {name}: it keeps a recurrent state.*another target"):
        Target(AutoModelForCausalLM.from_config(config), name)


@pytest.mark.parametrize("name", ["BloomConfig", "MptConfig"])
def test_models_without_position_ids_are_refused(name: str) -> None:
    config = getattr(transformers, name)(vocab_size=97, hidden_size=32, d_model=32, n_layer=2, n_layers=2, n_heads=4)
    with pytest.raises(UserError, match="it takes no position ids"):
        Target(AutoModelForCausalLM.from_config(config), name)


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(UserError, match="it is an encoder-decoder"):
        Target(transformers.T5ForConditionalGeneration(config), "t5")


def test_layers_of_an_unknown_kind_are_refused() -> None:
    config = tiny.make_model("llama").config
    config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UserError, match="linear_attention"):
        architectures.attention_windows(config)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_a_backend_without_dense_masks_is_refused(attention: str) -> None:
    model = zoo.make_model("llama")
    model.config._attn_implementation = attention
    with pytest.raises(UserError, match=rf"dense mask.*found {attention}"):
        Target(model, "tiny")


def strange(fault: str, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A target of an unknown kind that does not obey the mask, ignores positions, or scales its logits in secret."""
    target = Target(zoo.make_model("llama"), "strange", fast=False)
    target.config.model_type = "strange"
    forward = target.model.forward

    def faulty(**given: Any) -> Any:
        if fault == "mask" and given["attention_mask"] is not None:
            count = given["input_ids"].shape[1]
            given["attention_mask"] = masks.additive(masks.causal_matrix(count), target.dtype)
        if fault == "positions":
            given["position_ids"] = torch.arange(given["input_ids"].shape[1])[None]
        if fault == "error":
            raise TypeError("unexpected keyword")
        output = forward(**given)
        if fault == "logits":
            output.logits = output.logits * 3
        return output

    monkeypatch.setattr(target.model, "forward", faulty)
    return target


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("mask", "logits differ"),
        ("positions", "logits differ"),
        ("logits", "LM head"),
        ("error", "unexpected keyword"),
    ],
)
def test_the_trial_run_finds_what_does_not_work(fault: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=f"found strange, which failed a trial run.*{reason}"):
        architectures.check_by_running(strange(fault, monkeypatch))
    architectures.check_by_running(strange("none", monkeypatch))


@pytest.mark.parametrize("name", ["CohereConfig", "GPT2Config", "OlmoConfig"])
def test_others_are_tried_and_taken(name: str) -> None:
    """Cohere multiplies its logits, GPT-2 has learned positions."""
    config = getattr(transformers, name)(**{**tiny.COMMON, **zoo.SMALL})
    target = Target(AutoModelForCausalLM.from_config(config, attn_implementation="eager"), name)
    assert target.config.model_type not in architectures.TESTED
    architectures.check_by_running(target)
