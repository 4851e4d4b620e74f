"""Every kind of broken pair: the doctor names the cause. What can be seen without loading the target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_chat.doctor.findings import exit_code, worst
from tests import tiny
from tests.core.test_loading import save_head, save_tokenizer
from tests.doctor.parts import Pair, grave, only


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, draft_vocab=40)


def test_a_good_pair_has_nothing_grave(pair: Pair) -> None:
    findings = pair.files()
    assert grave(findings) == []
    assert exit_code(findings) == 0
    groups = list(dict.fromkeys(one.group for one in findings))
    assert groups == ["machine", "target", "text", "head", "memory"]
    checks = {one.check for one in findings if one.group == "head"}
    assert {"files", "generation", "draft vocabulary"} <= checks


def test_a_good_eagle_pair_has_nothing_grave(tmp_path: Path) -> None:
    assert grave(Pair(tmp_path, kind="eagle").files()) == []


def test_plain_decoding_needs_no_head(pair: Pair) -> None:
    findings = pair.files(draft="none")
    assert grave(findings) == []
    assert not [one for one in findings if one.group == "head"]


# The head's files.


def truncate(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_a_truncated_head(pair: Pair) -> None:
    truncate(pair.head / "model.safetensors")
    assert "ended early" in only(pair.files(), "files", code=2).cause


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>login</html>", "web page"),
        (b"\xff" * 64, "does not begin like"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00" + b"x" * 16, "header"),
    ],
)
def test_something_else_under_the_name_of_weights(pair: Pair, content: bytes, words: str) -> None:
    (pair.head / "model.safetensors").write_bytes(content)
    assert words in only(pair.files(), "files", code=2).cause


def test_a_head_that_is_nowhere(pair: Pair) -> None:
    assert "nowhere" in only(pair.files(draft="./nowhere"), "files", code=2).found


def test_a_head_without_config(pair: Pair) -> None:
    (pair.head / "config.json").unlink()
    only(pair.files(), "files", code=2)


@pytest.mark.parametrize("name", ["fc.weight", "midlayer.self_attn.q_proj.weight", "norm.weight", "lm_head.weight"])
def test_missing_tensors(pair: Pair, name: str) -> None:
    pair.change_tensors(pair.head, lambda tensors: tensors.pop(name))
    findings = pair.files()
    finding = only(findings, "generation" if name == "fc.weight" else "tensors", code=3)
    assert name in finding.found
    assert "incomplete" in finding.cause


def test_surplus_tensors_are_a_note(pair: Pair) -> None:
    pair.change_tensors(pair.head, lambda tensors: tensors.update(junk=torch.ones(2)))
    findings = pair.files()
    assert grave(findings) == []
    assert any("junk" in one.found and one.severity == "note" for one in findings)


# The head's kind.


def test_the_target_given_as_the_head(pair: Pair) -> None:
    assert "a target" in only(pair.files(draft=str(pair.target)), "generation", code=3).cause


def test_a_head_of_another_method(pair: Pair) -> None:
    def medusa(tensors: dict[str, Any]) -> None:
        tensors.clear()
        tensors["medusa_head.0.0.linear.weight"] = torch.ones(2, 2)

    pair.change_tensors(pair.head, medusa)
    assert "Medusa" in only(pair.files(), "generation", code=3).cause


@pytest.mark.parametrize(("kind", "said"), [("eagle", "LlamaForCausalLMEagle3"), ("eagle3", "EagleLlamaForCausalLM")])
def test_a_head_that_says_it_is_of_another_generation(tmp_path: Path, kind: str, said: str) -> None:
    """The weights decide, and the doctor says that it noticed."""
    findings = Pair(tmp_path, kind=kind, architectures=[said]).files()
    assert grave(findings) == []
    (note,) = [one for one in findings if one.check == "generation"]
    assert note.severity == "note"


def test_a_head_for_a_target_of_another_size(pair: Pair, tmp_path: Path) -> None:
    other = tiny.make_target("llama", hidden_size=64, head_dim=16)
    for kind in ("eagle", "eagle3"):
        save_head(tmp_path / kind, tiny.head_files(kind, other))
        finding = only(pair.files(draft=str(tmp_path / kind)), "sizes", code=3)
        assert "hidden size 64, this one has 32" in finding.cause


@pytest.mark.parametrize("name", ["fc.weight", "midlayer.self_attn.k_proj.weight"])
def test_a_tensor_that_is_no_matrix(pair: Pair, name: str) -> None:
    pair.change_tensors(pair.head, lambda tensors: tensors.update({name: torch.ones(3)}))
    assert "damaged" in only(pair.files(), "tensors", code=3).cause


def test_a_head_without_an_lm_head_is_noted(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.change_tensors(pair.head, lambda tensors: tensors.pop("lm_head.weight"))
    findings = pair.files()
    assert grave(findings) == []
    assert "the target's is used" in next(one.found for one in findings if one.check == "tensors")


def test_taps_that_are_not_in_the_target(tmp_path: Path) -> None:
    pair = Pair(tmp_path, eagle_aux_hidden_state_layer_ids=[2, 16, 29])
    assert "fewer" in only(pair.files(), "taps", code=3).cause


# Vocabularies.


def test_a_head_for_another_vocabulary(pair: Pair) -> None:
    def longer(tensors: dict[str, Any]) -> None:
        tensors["t2d"] = torch.cat((tensors["t2d"], torch.zeros(31, dtype=torch.bool)))

    pair.change_tensors(pair.head, longer)
    finding = only(pair.files(), "draft vocabulary", code=3)
    assert "128 tokens, this one has 97" in finding.cause


def test_a_config_that_names_another_vocabulary(pair: Pair) -> None:
    pair.change_config(pair.head, vocab_size=32000)
    assert "another vocabulary" in only(pair.files(), "vocabulary", "warning", code=0).cause


@pytest.mark.parametrize("damage", ["no map", "absolute ids", "out of range", "all zeros"])
def test_a_broken_draft_vocabulary(pair: Pair, damage: str) -> None:
    def change(tensors: dict[str, Any]) -> None:
        if damage == "no map":
            del tensors["d2t"], tensors["t2d"]
        elif damage == "absolute ids":
            tensors["d2t"] += torch.arange(40)
        elif damage == "out of range":
            tensors["d2t"][3] = 1000
        else:
            tensors["d2t"].zero_()

    pair.change_tensors(pair.head, change)
    finding = only(pair.files(), "draft vocabulary", code=3)
    assert ("not exported" in finding.cause) == (damage == "no map")


def test_a_map_that_is_not_used(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.change_tensors(pair.head, lambda tensors: tensors.update(d2t=torch.ones(tiny.VOCAB, dtype=torch.int64)))
    assert "not used" in only(pair.files(), "draft vocabulary", "warning").found


def test_the_window_of_the_head(pair: Pair) -> None:
    pair.change_config(pair.head, max_position_embeddings=64)
    (note,) = [one for one in pair.files() if one.check == "window"]
    assert (note.severity, note.values) == ("note", {"head": 64, "target": 256})
    pair.change_config(pair.head, sliding_window=16)
    assert "full attention" in only(pair.files(), "window", "warning", code=0).cause


def test_a_head_with_the_tokenizer_of_another_target(pair: Pair) -> None:
    shutil.copy(pair.target / "tokenizer.json", pair.head)
    assert grave(pair.files()) == []
    path = pair.head / "tokenizer.json"
    other = json.loads(path.read_text())
    words = other["model"]["vocab"]
    words["A"], words["B"] = words["B"], words["A"]
    path.write_text(json.dumps(other))
    finding = only(pair.files(), "tokenizer", code=3)
    assert "another target" in finding.cause
    assert finding.values == {"differing": 2}


# The target.


def test_a_truncated_target(pair: Pair) -> None:
    truncate(pair.target / "model.safetensors", 0.9)
    assert "ended early" in only(pair.files(), "files", code=1).cause


def test_a_target_with_missing_shards(pair: Pair) -> None:
    model = tiny.make_model("llama")
    model.save_pretrained(pair.target, max_shard_size="100KB")
    if (pair.target / "model.safetensors").exists():
        (pair.target / "model.safetensors").unlink()
    shards = sorted(pair.target.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    assert shards[1].name in only(pair.files(), "files", code=1).found


def test_a_target_without_weights(pair: Pair) -> None:
    (pair.target / "model.safetensors").unlink()
    only(pair.files(), "files", code=1)


def test_a_damaged_target_config(pair: Pair) -> None:
    (pair.target / "config.json").write_text("{")
    only(pair.files(), "kind", code=2)


def test_a_target_that_cannot_verify_a_tree(pair: Pair) -> None:
    pair.change_config(pair.target, layer_types=["linear_attention"] * tiny.LAYERS, model_type="qwen3")
    assert "linear_attention" in only(pair.files(), "kind", code=2).found


def test_bfloat16_weights_in_float16(pair: Pair) -> None:
    tiny.make_model("llama", eos_token_id=91).to(torch.bfloat16).save_pretrained(pair.target)
    finding = only(pair.files(dtype="float16"), "dtype", "warning", code=0)
    assert "bfloat16" in finding.remedy
    assert grave(pair.files(dtype="bfloat16")) == []


@pytest.mark.parametrize("best", [torch.float32, torch.bfloat16])
def test_a_slow_format_is_noted(pair: Pair, monkeypatch: pytest.MonkeyPatch, best: torch.dtype) -> None:
    monkeypatch.setattr("eagle_chat.doctor.target.best_cpu_dtype", lambda *_: best)
    (found,) = [one for one in pair.files(dtype="float32") if one.check == "dtype"]
    assert found.severity == ("ok" if best == torch.float32 else "note")
    assert ("leave --dtype out" in found.remedy) == (best != torch.float32)


def test_more_memory_needed_than_there_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_chat.doctor.memory.available", lambda *_, **__: (100_000, "free in main memory"))
    finding = only(pair.files(), "memory", code=1)
    assert finding.values["total"] > 100_000
    monkeypatch.setattr("eagle_chat.doctor.memory.available", lambda *_, **__: (finding.values["total"] - 1, "free"))
    assert "--load-in-4bit" in only(pair.files(), "memory", code=1).remedy


# The tokenizer.


def test_a_tokenizer_with_more_tokens_than_the_target(pair: Pair) -> None:
    model = tiny.make_model("llama", vocab_size=80, eos_token_id=None)
    model.save_pretrained(pair.target)
    findings = [one for one in pair.files(draft="none") if one.severity == "error"]
    assert {one.check for one in findings} == {"tokenizer", "stop"}
    assert "another model" in findings[0].cause


def test_a_tokenizer_with_far_fewer_tokens(pair: Pair) -> None:
    tiny.make_model("llama", vocab_size=300, eos_token_id=91).save_pretrained(pair.target)
    assert "another model" in only(pair.files(draft="none"), "tokenizer", "warning", code=0).cause


def test_no_tokenizer_at_all(pair: Pair) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (pair.target / name).unlink()
    assert only(pair.files(), "tokenizer").cause


def test_no_template(pair: Pair) -> None:
    save_tokenizer(pair.target, template=None)
    (pair.target / "chat_template.jinja").unlink(missing_ok=True)
    assert "--template" in only(pair.files(), "template", code=2).remedy


@pytest.mark.parametrize(
    ("template", "severity", "words"),
    [
        ("{{ raise_exception('no') }}", "error", "--template FILE"),
        ("always the same", "error", "--template FILE"),
    ],
)
def test_a_template_that_is_none(pair: Pair, template: str, severity: str, words: str) -> None:
    save_tokenizer(pair.target, template)
    assert words in only(pair.files(), "template", severity).remedy


def test_a_second_bos(pair: Pair) -> None:
    """Two in front are a fault; one that begins every turn is none."""
    turns = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
    for front, severity in (("", "ok"), ("<|start|>", "warning")):
        save_tokenizer(pair.target, front + turns)
        path = pair.target / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "bos_token": "<|start|>"}))
        (found,) = [one for one in pair.files() if one.check == "template"]
        assert found.severity == severity, found


def test_nothing_ends_an_answer(pair: Pair) -> None:
    pair.change_config(pair.target, eos_token_id=None)
    (pair.target / "generation_config.json").unlink()
    save_tokenizer(pair.target, "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert "--stop" in only(pair.files(), "stop", "warning").remedy


def test_the_gravest_decides() -> None:
    assert worst([]) == "ok"
