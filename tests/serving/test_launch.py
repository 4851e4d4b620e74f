from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle_chat.core.config import LoadConfig, TreeConfig
from eagle_chat.core.errors import EagleChatError, HeadMismatchError, UserError
from eagle_chat.serving import launch
from eagle_chat.serving.chains import FIGURES
from eagle_chat.serving.config import Wishes


def make_folder(path: Path, *names: str) -> Path:
    path.mkdir(exist_ok=True)
    save_file({name: np.zeros(16, np.float32) for name in names}, path / "model.safetensors")
    return path


@pytest.fixture
def load(tmp_path: Path) -> LoadConfig:
    target = make_folder(tmp_path / "target", *(f"layers.{layer}" for layer in range(20)))
    head = make_folder(tmp_path / "head", "fc.weight", "midlayer.hidden_norm.weight")
    return LoadConfig(base=str(target), draft=str(head))


def wishes(**more: Any) -> Wishes:
    return Wishes("127.0.0.1", 8000, **more)


def after(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_vllm_gets_method_head_and_chain(load: LoadConfig) -> None:
    made, notes = launch.plan("vllm", load, TreeConfig(depth=4), wishes(name="mine", more=("--enforce-eager",)))
    command = launch.vllm_command(made)
    assert command[:3] == ["vllm", "serve", load.base]
    config = {"method": "eagle3", "model": load.draft, "num_speculative_tokens": 4}
    assert json.loads(after(command, "--speculative-config")) == config
    assert (after(command, "--served-model-name"), after(command, "--port")) == ("mine", "8000")
    assert command[-1] == "--enforce-eager"
    assert notes == []
    assert "--tensor-parallel-size" not in command


def test_parallel_sizes_dtype_and_ray(load: LoadConfig) -> None:
    asked = wishes(tensor_parallel=4, pipeline_parallel=2, machines=2)
    load = LoadConfig(base=load.base, draft=load.draft, dtype="bfloat16", load_in_4bit=True, revision="abc")
    made, _ = launch.plan("vllm", load, TreeConfig(), asked)
    command = launch.vllm_command(made)
    pairs = {
        "--tensor-parallel-size": "4", "--pipeline-parallel-size": "2", "--distributed-executor-backend": "ray",
        "--dtype": "bfloat16", "--quantization": "bitsandbytes", "--revision": "abc",
    }  # fmt: skip
    assert {option: after(command, option) for option in pairs} == pairs
    other = launch.sglang_command(made)
    assert (after(other, "--tp-size"), after(other, "--pp-size"), after(other, "--nnodes")) == ("4", "2", "2")


def test_sglang_gets_a_tree_where_one_is_asked_for(load: LoadConfig) -> None:
    made, _ = launch.plan("sglang", load, TreeConfig(depth=5, top_k=4, total_tokens=16), wishes())
    command = launch.sglang_command(made)
    pairs = {
        "--speculative-algorithm": "EAGLE3", "--speculative-num-steps": "5", "--speculative-eagle-topk": "4",
        "--speculative-num-draft-tokens": "16", "--speculative-draft-model-path": load.draft,
    }  # fmt: skip
    assert {option: after(command, option) for option in pairs} == pairs
    chain = launch.sglang_command(launch.plan("sglang", load, TreeConfig(depth=3), wishes())[0])
    assert (after(chain, "--speculative-eagle-topk"), after(chain, "--speculative-num-draft-tokens")) == ("1", "4")


def test_the_chain_follows_from_measured_acceptance(load: LoadConfig) -> None:
    assert load.draft is not None
    made, notes = launch.plan("vllm", load, TreeConfig(), wishes())
    assert (made.chain, "nothing is known" in notes[0]) == (3, True)
    (Path(load.draft) / FIGURES).write_text(json.dumps({"live": {"accept_by_depth": [0.2]}}), encoding="utf-8")
    made, notes = launch.plan("vllm", load, TreeConfig(), wishes())
    assert (made.chain, "acceptance 0.20" in notes[0]) == (1, True)
    assert launch.plan("vllm", load, TreeConfig(), wishes(acceptance="0.95,0.95"))[0].chain == 8


def test_no_head_no_speculation(load: LoadConfig) -> None:
    made, _ = launch.plan("vllm", LoadConfig(base=load.base, draft="none"), TreeConfig(), wishes())
    assert "--speculative-config" not in launch.vllm_command(made)
    assert "--speculative-algorithm" not in launch.sglang_command(made)


def test_aliases_are_looked_up() -> None:
    made, _ = launch.plan("vllm", LoadConfig(base="llama-3.1-8b"), TreeConfig(), wishes())
    assert (made.target, made.method) == ("meta-llama/Llama-3.1-8B-Instruct", "eagle3")
    assert made.head == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    made, _ = launch.plan("vllm", LoadConfig(base="llama-3-instruct"), TreeConfig(), wishes())
    assert made.method == "eagle"
    with pytest.raises(UserError, match="a draft head for some/model expected"):
        launch.plan("vllm", LoadConfig(base="some/model"), TreeConfig(), wishes())


def test_a_head_that_is_none_is_refused(load: LoadConfig, tmp_path: Path) -> None:
    with pytest.raises(HeadMismatchError, match=r"no fc\.weight"):
        launch.head_method(load.base)
    with pytest.raises(UserError, match=r"model\.safetensors expected"):
        launch.head_method(str(tmp_path))
    assert launch.head_method(str(make_folder(tmp_path / "one", "fc.weight", "layers.0.x"))) == "eagle"
    assert (
        launch.head_method(str(make_folder(tmp_path / "two", "model.fc.weight", "model.layers.0.hidden_norm.weight")))
        == "eagle3"
    )


@pytest.mark.parametrize(
    ("engine", "change", "tree", "option"),
    [
        ("vllm", {"load_in_8bit": True}, {}, "--load-in-8bit"),
        ("vllm", {"device_map": "auto"}, {}, "--device-map"),
        ("vllm", {}, {"total_tokens": 8}, "--total-tokens"),
        ("vllm", {}, {"top_k": 3}, "--top-k"),
        ("sglang", {}, {"policy": "static"}, "--policy"),
        ("sglang", {"template": "vicuna"}, {}, "--template"),
    ],
)
def test_options_without_a_counterpart_are_refused(
    load: LoadConfig, engine: str, change: dict[str, Any], tree: dict[str, Any], option: str
) -> None:
    changed = LoadConfig(**{**vars(load), **change})
    with pytest.raises(UserError, match=option):
        launch.plan(engine, changed, TreeConfig(**tree), wishes())


def test_a_key_is_never_shown(load: LoadConfig) -> None:
    made, _ = launch.plan("vllm", load, TreeConfig(), wishes())
    command = launch.vllm_command(made)
    assert shlex.split(launch.shown(command, "vllm", has_key=False)) == command
    assert launch.shown(command, "vllm", has_key=True).startswith('VLLM_API_KEY="$EAGLE_CHAT_API_KEY" vllm serve')
    assert launch.shown(command, "sglang", has_key=True).endswith('--api-key "$EAGLE_CHAT_API_KEY"')


def script(path: Path, python: str) -> Path:
    path.write_text(f"#!{python}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("echo CAN", None),
        ("echo; echo 'CANNOT: no such model'", "no such model"),
        ("echo broken >&2; exit 1", "broken"),
    ],
)
def test_vllm_is_asked_first(load: LoadConfig, tmp_path: Path, says: str, words: str | None) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$3" > {tmp_path}/asked\necho noise\n{says}\n', encoding="utf-8")
    python.chmod(0o755)
    program = script(tmp_path / "vllm", str(python))
    made, _ = launch.plan("vllm", load, TreeConfig(depth=2), wishes())
    if words is None:
        launch.check_vllm(made, program)
    else:
        with pytest.raises(EagleChatError, match=f"cannot load target and head: {words}"):
            launch.check_vllm(made, program)
    asked = json.loads((tmp_path / "asked").read_text(encoding="utf-8"))
    assert asked["speculative_config"] == {"method": "eagle3", "model": load.draft, "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("code", "words"), [(0, "vllm serve"), (1, "python -m vllm.entrypoints.openai.api_server --model")]
)
def test_a_vllm_under_another_name_is_started_as_a_module(tmp_path: Path, code: int, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    python.chmod(0o755)
    program = script(tmp_path / "vllm", str(python))
    assert " ".join(launch.words_before_target("vllm", program)) == f"{tmp_path}/{words}"


def test_an_engine_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="the program vllm of vllm expected"):
        launch.find("vllm", None)
    program = script(tmp_path / "vllm", "/bin/sh")
    assert launch.find("vllm", None) == program
    with pytest.raises(UserError, match="nowhere"):
        launch.find("vllm", tmp_path / "nowhere")
