"""From folders to an engine, as a user names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core import fast_plan, fast_target
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import EagleChatError, HeadMismatchError, UserError
from eagle_chat.core.heads.checkpoint import Checkpoint
from tests import tiny, zoo

TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + ' ' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant ' }}{% endif %}"
)


def save_tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    words = {chr(33 + index): index for index in range(90)}
    tokenizer = Tokenizer(models.WordLevel({**words, "<|start|>": 90, "<|end|>": 91}, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="!")
    fast.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|end|>"]})
    fast.chat_template = template
    fast.save_pretrained(folder)


def save_head(folder: Path, files: Checkpoint) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files.config))
    save_file(files.tensors, folder / "model.safetensors")


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    model = tiny.make_model("llama", tie_word_embeddings=True, eos_token_id=[5, 9])
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def head_folder(tmp_path: Path) -> Path:
    save_head(tmp_path / "head", tiny.head_files("eagle3", tiny.make_target("llama")))
    return tmp_path / "head"


def test_a_tied_target_without_lm_head_runs_with_its_head(target_folder: Path, head_folder: Path) -> None:
    from safetensors import safe_open

    with safe_open(target_folder / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118  safetensors has no __contains__
    engine = load_engine(base=str(target_folder), draft=str(head_folder), dtype="float32")
    question: Any = [{"role": "user", "content": "hello"}]
    sampling = SamplingConfig(max_new_tokens=20, ignore_stop_ids=True)
    tokens = engine.chat.encode(question)
    found = tiny.answer(engine, question, sampling=sampling, tree=TreeConfig("dynamic", 3, 3, 8))
    assert found == tiny.generate(engine.target.model, tokens, 20)


def test_stop_ids_from_the_generation_config_and_the_template(target_folder: Path, head_folder: Path) -> None:
    engine = load_engine(base=str(target_folder), draft=str(head_folder), dtype="float32")
    assert engine.chat.stop_ids == {5, 9, 91}


def test_no_generation_config_at_all(target_folder: Path) -> None:
    (target_folder / "generation_config.json").unlink()
    config = json.loads((target_folder / "config.json").read_text())
    config["eos_token_id"] = None
    (target_folder / "config.json").write_text(json.dumps(config))
    engine = load_engine(base=str(target_folder), draft="none", dtype="float32")
    assert engine.chat.stop_ids == {91}


def test_plain_decoding_without_a_head(target_folder: Path) -> None:
    engine = load_engine(base=str(target_folder), draft="none", dtype="float32")
    assert engine.head is None
    assert engine.describe()["head"] is None
    assert tiny.answer(engine, [3, 4, 5], sampling=SamplingConfig(max_new_tokens=4, ignore_stop_ids=True))


def refused(kind: type[EagleChatError], **options: Any) -> str:
    with pytest.raises(kind) as caught:
        load_engine(**options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_wrong_names_get_one_line(target_folder: Path, head_folder: Path, tmp_path: Path) -> None:
    base = str(target_folder)
    assert "smollm2" in refused(UserError, base="smolm2")
    assert "GGUF" in refused(UserError, base=str(tmp_path / "none.gguf"), draft="none")
    assert "--draft none" in refused(UserError, base=base)
    assert "--draft" in refused(UserError, base=base, draft="./nowhere")
    assert "config.json" in refused(UserError, base=base, draft=str(tmp_path))
    assert "gpu9" in refused(UserError, base=base, draft="none", device="gpu9")
    assert "template" in refused(UserError, base=base, draft="none", template="nope")


def test_the_target_given_as_the_head(target_folder: Path) -> None:
    assert "whole model" in refused(HeadMismatchError, base=str(target_folder), draft=str(target_folder))


def test_a_head_of_another_target(target_folder: Path, tmp_path: Path) -> None:
    other = tiny.make_target("llama", hidden_size=64, head_dim=16)
    for kind in ("eagle", "eagle3"):
        files = tiny.head_files(kind, other)
        save_head(tmp_path / kind, files)
        message = refused(HeadMismatchError, base=str(target_folder), draft=str(tmp_path / kind))
        assert "another target" in message


def test_a_damaged_target_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "could not be loaded" in refused(UserError, base=str(tmp_path), draft="none")


def test_dtype_is_measured_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_CHAT_CACHE", str(tmp_path))
    monkeypatch.setattr(fast_plan, "WORKING_SET", 2**16)
    config = tiny.make_model("llama").config
    first = fast_target.best_cpu_dtype(config, 8)
    assert first in (torch.float32, torch.bfloat16)

    def fail(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(fast_plan, "measure", fail)
    assert fast_target.best_cpu_dtype(config, 8) == first
    (tmp_path / "machine.json").write_text("not json")
    with pytest.raises(AssertionError):
        fast_target.best_cpu_dtype(config, 8)


def test_contradictory_options() -> None:
    with pytest.raises(UserError, match="only one"):
        LoadConfig(load_in_8bit=True, load_in_4bit=True)
    for options in ({"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 1.1}, {"top_k": -1}, {"max_new_tokens": -1}):
        with pytest.raises(UserError):
            SamplingConfig(**options)
    for shape in ({"depth": 0}, {"top_k": 0}, {"total_tokens": 0}, {"policy": "trees"}):
        with pytest.raises(UserError):
            TreeConfig(**shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "banana"},
        {"rms_norm_eps": "x"},
        {"rope_theta": "abc"},
        {"rope_scaling": {"rope_type": "banana"}},
        {"eagle_config": "yes"},
        {"eagle_aux_hidden_state_layer_ids": ["a", 2, 3]},
        {"num_attention_heads": None},
    ],
)
def test_a_config_that_cannot_be_is_named(target_folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    save_head(tmp_path / "bad", tiny.head_files("eagle3", tiny.make_target("llama"), **change))
    message = refused(HeadMismatchError, base=str(target_folder), draft=str(tmp_path / "bad"))
    assert next(iter(change)).removesuffix("_scaling").removesuffix("_theta") in message


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_a_config_that_is_no_object(target_folder: Path, head_folder: Path, text: str) -> None:
    (head_folder / "config.json").write_text(text)
    assert "must hold an object" in refused(UserError, base=str(target_folder), draft=str(head_folder))


@pytest.mark.parametrize("content", [[1, 2], {"fc.weight": 3}])
def test_a_bin_file_without_tensors(target_folder: Path, head_folder: Path, content: Any) -> None:
    (head_folder / "model.safetensors").unlink()
    torch.save(content, head_folder / "pytorch_model.bin")
    assert "tensors" in refused(UserError, base=str(target_folder), draft=str(head_folder))


def test_tensors_that_cannot_be_weights(target_folder: Path, tmp_path: Path) -> None:
    files = tiny.head_files("eagle3", tiny.make_target("llama"))
    whole = {**files.tensors, "fc.weight": files.tensors["fc.weight"].to(torch.int8)}
    few = {**files.tensors, "embed_tokens.weight": torch.ones(5, tiny.HIDDEN)}
    for name, tensors, word in (("int8", whole, "floating-point"), ("few", few, "embeddings")):
        save_head(tmp_path / name, Checkpoint(files.config, tensors))
        assert word in refused(HeadMismatchError, base=str(target_folder), draft=str(tmp_path / name))


def test_a_target_with_a_missing_weight(target_folder: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(target_folder / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, target_folder / "model.safetensors", {"format": "pt"})
    assert "model.layers.3.mlp.up_proj.weight" in refused(UserError, base=str(target_folder), draft="none")


@pytest.mark.parametrize("base", ["/nonexistent/x", "a/b/c", "./nowhere"])
def test_a_target_that_is_not_there(base: str) -> None:
    assert base in refused(UserError, base=base)


@pytest.mark.parametrize(
    "options",
    [{"stop": "t9"}, {"stop": (1,)}, {"seed": None}, {"seed": 1.5}, {"temperature": "a"}, {"max_new_tokens": 1.5}],
)
def test_sampling_options_of_the_wrong_kind(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        SamplingConfig(**options)


def test_tree_options_of_the_wrong_kind() -> None:
    for options in ({"depth": 1.5}, {"top_k": True}, {"depth": 10**6}, {"paths": ((1.5,),)}, {"paths": (0,)}):
        with pytest.raises(UserError):
            TreeConfig(**options)  # type: ignore[arg-type]
    assert TreeConfig(paths=[[0], [0, 0]]).paths == ((0,), (0, 0))  # type: ignore[arg-type]


# Names, revisions and strangers' code.


CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path("{mark}").touch()


class StrangeConfig(LlamaConfig):
    model_type = "strange"


class StrangeForCausalLM(LlamaForCausalLM):
    config_class = StrangeConfig
"""


@pytest.fixture
def strange_folder(target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target whose code lies beside its weights, and leaves a mark when it is run."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (target_folder / "strange.py").write_text(CODE.format(mark=tmp_path / "ran"))
    config = json.loads((target_folder / "config.json").read_text())
    config |= {
        "model_type": "strange",
        "auto_map": {"AutoConfig": "strange.StrangeConfig", "AutoModelForCausalLM": "strange.StrangeForCausalLM"},
    }
    (target_folder / "config.json").write_text(json.dumps(config))
    return target_folder


def test_code_of_strangers_is_not_run(strange_folder: Path, tmp_path: Path) -> None:
    message = refused(UserError, base=str(strange_folder), draft="none", dtype="float32")
    assert "its code is in its own repository" in message
    assert "--trust-remote-code" in message
    assert not (tmp_path / "ran").exists()


def test_code_of_strangers_is_run_when_asked_for_and_named(strange_folder: Path, tmp_path: Path) -> None:
    engine = load_engine(base=str(strange_folder), draft="none", dtype="float32", trust_remote_code=True)
    assert (tmp_path / "ran").exists()
    assert engine.target.config.model_type == "strange"
    started = next(engine.stream([5, 6, 7], sampling=SamplingConfig(max_new_tokens=1)))
    assert started.type == "started"
    assert started.notes[0].startswith("warning: code from the repository of")
    assert "--revision COMMIT" in started.notes[0]


def test_a_pickle_in_the_targets_weights_is_not_run(target_folder: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (target_folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.zeros(2), "extra": Evil()}, target_folder / "pytorch_model.bin")
    assert "could not be loaded" in refused(UserError, base=str(target_folder), draft="none", dtype="float32")
    assert not (tmp_path / "ran").exists()


def test_eager_is_taken_where_there_is_nothing_else(tmp_path: Path) -> None:
    zoo.make_model("gemma2").save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    engine = load_engine(base=str(tmp_path), draft="none", dtype="float32")
    assert engine.target.config._attn_implementation == "eager"
    assert "scaled_dot_product" in refused(UserError, base=str(tmp_path), draft="none", attention="sdpa")
    assert LoadConfig().attention == "auto"


def test_an_architecture_that_fails_its_trial_is_refused(target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr("eagle_chat.core.loading.check_by_running", lambda target: tried.append(target.name))
    load_engine(base=str(target_folder), draft="none", dtype="float32")
    assert tried == [str(target_folder)]


def test_float16_is_warned_about_where_it_overflows(tmp_path: Path) -> None:
    zoo.make_model("qwen2").save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    notes = {}
    for dtype in ("float16", "bfloat16"):
        engine = load_engine(base=str(tmp_path), draft="none", dtype=dtype)
        notes[dtype] = next(engine.stream([5], sampling=SamplingConfig(max_new_tokens=0))).notes  # type: ignore[union-attr]
    assert notes["float16"] == ["warning: qwen2 overflows in float16, answers can be noise: use --dtype bfloat16"]
    assert notes["bfloat16"] == []


def test_the_heads_revision_reaches_the_hub(target_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append({"repo": repo, **options})
        raise OSError("no network here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    for revision in ("0123abc", None):
        refused(UserError, base=str(target_folder), draft="a/b", draft_revision=revision, dtype="float32")
    assert [call["revision"] for call in asked] == ["0123abc", None]


@pytest.mark.parametrize(("device", "nodes"), [("cuda", 50), ("cpu", None)])
def test_a_known_head_has_its_tree_on_an_accelerator(device: str, nodes: int | None) -> None:
    from types import SimpleNamespace

    from eagle_chat.core.loading import _known_tree

    target: Any = SimpleNamespace(device=torch.device(device))
    tree = _known_tree("yuhuili/EAGLE-Vicuna-13B-v1.3", target)
    assert (tree.total_tokens if tree else None) == nodes
    assert _known_tree("someone/head", target) is None
    assert _known_tree(None, target) is None
