"""Files of a run, of features and of a corpus that something else has written, or cut: one line says so."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from eagle_chat.core.errors import UserError
from eagle_chat.training import store
from eagle_chat.training.checkpoints import RunFolder
from eagle_chat.training.config import TrainConfig
from eagle_chat.training.export import export
from eagle_chat.training.fit import fit
from eagle_chat.training.prepare import load_target
from eagle_chat.training.shards import Shards
from eagle_chat.training.view import Silent
from tests.training.tiny_run import config, save_target, write_data


def silent(*_: Any) -> None:
    """Says nothing."""


@pytest.fixture
def run(tmp_path: Path) -> TrainConfig:
    """A run of one step that has features on disk."""
    save_target(tmp_path / "target")
    write_data(tmp_path / "data.jsonl")
    done = config(tmp_path, steps=1, features="disk")
    fit(done, silent, silent, Silent())
    return done


def test_a_head_is_exported_into_a_folder_only(run: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="a folder to write into expected"):
            export(tmp_path / "run", place)
    with pytest.raises(UserError, match="beside that of the run"):
        export(tmp_path / "run", tmp_path / "target" / ".." / "run")


def other_bytes() -> list[bytes]:
    draw = random.Random(0)
    return [b"", b"hello world", b"\x80\x02}q.", *(draw.randbytes(draw.randint(1, 200)) for _ in range(60))]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_weights_of_other_bytes(run: TrainConfig, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    whole = (tmp_path / "run" / "last.pt").read_bytes()
    for name, content in [("last.pt", [whole[: len(whole) // 2]]), ("checkpoint-00000001.pt", other_bytes())]:
        for some in content:
            (folder.path / name).write_bytes(some)
            with pytest.raises(UserError, match=rf"{name}, found another or a broken one \(.+\): remove it"):
                folder.load(folder.path / name)
    with pytest.raises(UserError, match="remove it"):
        export(tmp_path / "run", tmp_path / "head")
    with pytest.raises(UserError, match="remove it"):
        fit(run, silent, silent, Silent())


@pytest.mark.parametrize("content", [[1], {}, {"weights": {}}, None, 3])
def test_weights_of_another_program(run: TrainConfig, tmp_path: Path, content: Any) -> None:
    for name in ("last.pt", "checkpoint-00000001.pt"):
        torch.save(content, tmp_path / "run" / name)
        with pytest.raises(UserError, match=f"{name}, found another"):
            RunFolder(tmp_path / "run").load(tmp_path / "run" / name)


def test_a_checkpoint_of_another_run(run: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoint-00000001.pt"
    content = torch.load(path, weights_only=True)
    torch.save(content | {"weights": {"fc.weight": torch.ones(2)}}, path)
    with pytest.raises(UserError, match="found one of another"):
        fit(run, silent, silent, Silent())


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"config": 1, "target": 2}', "[" * 100_000, "\udcff"])
def test_settings_of_a_run(run: TrainConfig, tmp_path: Path, content: str) -> None:
    (tmp_path / "run" / "run.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    for use in (lambda: export(tmp_path / "run", tmp_path / "head"), lambda: fit(run, silent, silent, Silent())):
        with pytest.raises(UserError, match=r"the settings of a run expected in .*run\.json, found .*: give"):
            use()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"taps": 5}'])
@pytest.mark.parametrize("head", ["eagle", "eagle3"])
def test_settings_of_features(run: TrainConfig, tmp_path: Path, content: str, head: Any) -> None:
    (tmp_path / "run" / "features" / "train" / "features.json").write_text(content)
    other = dataclasses.replace(run, out=str(tmp_path / "other"), features_folder=str(tmp_path / "run" / "features"))
    with pytest.raises(UserError, match="give another --features-folder"):
        fit(dataclasses.replace(other, head=head), silent, silent, Silent())


@pytest.mark.parametrize("cut", [lambda data: data[:-7], lambda data: data[:5], lambda data: b""])
def test_features_that_were_cut_are_made_again(run: TrainConfig, tmp_path: Path, cut: Callable[[bytes], bytes]) -> None:
    (shard,) = (tmp_path / "run" / "features" / "train").glob("*.safetensors")
    whole = load(shard.read_bytes())
    shard.write_bytes(cut(shard.read_bytes()))
    fit(run, silent, silent, Silent())
    again = load(shard.read_bytes())
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def with_weights(folder: Path, change: Callable[[Any], None]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)


def scale_one_matrix(model: Any) -> None:
    model.model.layers[3].self_attn.v_proj.weight *= 1.01


def scale_final_norm(model: Any) -> None:
    model.model.norm.weight += 0.1


def scale_embedding(model: Any) -> None:
    model.model.embed_tokens.weight *= 1.01


@pytest.mark.parametrize("change", [scale_one_matrix, scale_final_norm, scale_embedding])
def test_features_of_other_weights_are_refused(run: TrainConfig, tmp_path: Path, change: Callable[[Any], None]) -> None:
    assert store.fingerprint(load_target(run)[0]) == store.fingerprint(load_target(run)[0])
    with_weights(tmp_path / "target", change)
    with pytest.raises(UserError, match="found some with another weights: give another --features-folder"):
        fit(run, silent, silent, Silent())
    other = {"out": str(tmp_path / "other"), "features_folder": str(tmp_path / "run" / "features"), "head": "eagle"}
    with pytest.raises(UserError, match="another weights"):
        fit(dataclasses.replace(run, **other), silent, silent, Silent())


def test_features_of_another_revision_are_refused(run: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "run" / "features" / "train" / "features.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": "v1"}))
    with pytest.raises(UserError, match="another revision"):
        fit(run, silent, silent, Silent())


@pytest.mark.parametrize("name", ["corpus.json", "part-00000.json", "part-00000.jsonl"])
@pytest.mark.parametrize("content", ["[", "{", "[" * 100_000])
def test_files_of_a_corpus(tmp_path: Path, name: str, content: str) -> None:
    shards = Shards(tmp_path)
    shards.open({"base": "tiny"})
    shards.write(0, [{"messages": []}], {"refused": {}})
    (tmp_path / name).write_text(content)

    def use() -> None:
        shards.open({"base": "tiny"})
        shards.notes()
        list(shards.rows())

    with pytest.raises(UserError, match=name):
        use()
