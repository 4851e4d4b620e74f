"""The converted model itself: configuration, stop ids, template, tokenizer, weights."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_chat.core import embedded
from eagle_chat.core.config import cache_root
from eagle_chat.core.embedded_sources import find_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_folder)


def test_loads_quickly_and_without_network(smollm2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert embedded.ensure_embedded() == smollm2_folder
    start = time.monotonic()
    model = LlamaForCausalLM.from_pretrained(smollm2_folder, dtype=torch.bfloat16)
    AutoTokenizer.from_pretrained(smollm2_folder)
    elapsed = time.monotonic() - start
    assert elapsed < 15, f"took {elapsed:.1f} s (under 3 s on an idle machine)"

    assert model.generation_config.eos_token_id == 2
    assert model.generation_config.bos_token_id == 1
    assert model.generation_config.pad_token_id == 2
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.dtype == torch.bfloat16


def test_configuration(smollm2_folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(smollm2_folder)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100_000.0}
    assert config.rms_norm_eps == 1e-5
    assert config.max_position_embeddings == 8192
    assert config.tie_word_embeddings
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert config.vocab_size == 49_152


def test_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    asked = {"role": "user", "content": "hi"}
    tail = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render([asked]) == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{tail}"
    assert render([{"role": "system", "content": "Be brief."}, asked]) == (
        f"<|im_start|>system\nBe brief.<|im_end|>\n{tail}"
    )
    ids = tokenizer.apply_chat_template([asked], add_generation_prompt=True)["input_ids"]
    assert ids[:4] == [1, 9690, 198, 2683]
    assert tokenizer.decode(ids) == render([asked])
    assert ids.count(1) == 3, "one start mark for each part: no extra beginning-of-text token"


def test_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (2, 0)
    assert tokenizer("<|im_start|>user")["input_ids"] == [1, 4093]
    assert tokenizer.decode([1, 4093, 2], skip_special_tokens=True) == "user"
    assert tokenizer.model_max_length == 8192


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12345 and 6", ["1", "2", "3", "4", "5", "Ġand", "Ġ", "6"]),
        ("x  12", ["x", "ĠĠ", "1", "2"]),  # GPT-2's pattern alone gives Ġ Ġ 1 2
        ("a\n\n  b", ["a", "ĊĊĠ", "Ġb"]),
        ("def f(x):\n    return x", ["def", "Ġf", "(", "x", "):", "ĊĠĠĠ", "Ġreturn", "Ġx"]),
        (" hello", ["Ġhello"]),
        ("hello", ["hello"]),
    ],
)
def test_tokens(text: str, tokens: list[str], tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "text", ["😀你好é👩‍💻", "a , b", "  two\n\n\nthree\t.", "½ ² ٣٤", "\r\n", "don't they're", " ", ""]
)
def test_round_trip(text: str, tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


GPT2_PATTERN = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


@given(st.text(alphabet=st.sampled_from("ab é'st1٣½ \n\t.,你😀"), max_size=24))
@settings(max_examples=200, deadline=None)
def test_pieces_are_llama_cpps(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """llama.cpp's 'smollm' splits at every number character, then by GPT-2's pattern within the parts."""
    parts = regex.findall(r"\p{N}|[^\p{N}]+", text)
    expected = [piece for part in parts for piece in GPT2_PATTERN.findall(part)]
    splits = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in splits] == expected


@pytest.mark.slow  # transformers' reader of GGUF files takes half a minute
def test_weights_are_those_transformers_reads(smollm2_folder: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    gguf = find_gguf(cache_root() / "downloads", lambda *_: None)
    theirs = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    ours = load_file(smollm2_folder / "model.safetensors")
    expected = theirs.state_dict()
    assert set(expected) - set(ours) == {"lm_head.weight"}, "tied"
    assert all(torch.equal(weight, expected[name].bfloat16()) for name, weight in ours.items())
    saved = json.loads((smollm2_folder / "config.json").read_text(encoding="utf-8"))
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "eos_token_id"):
        assert saved[key] == getattr(theirs.config, key)
