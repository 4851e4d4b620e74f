"""Training that goes on from another head: its shape counts, options that contradict it are refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_chat.core.errors import UserError
from eagle_chat.training import prepare
from eagle_chat.training.checkpoints import RunFolder
from eagle_chat.training.config import TrainConfig
from eagle_chat.training.export import export
from eagle_chat.training.fit import fit
from eagle_chat.training.view import Silent
from tests.training.tiny_run import config, save_target, write_data

TAPS = (1, 3, 6)


def silent(*_: Any) -> None:
    """Says nothing."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, data, and two exported heads: `odd` with taps and norms of its own, `plain` with none."""
    folder = tmp_path_factory.mktemp("from-head")
    save_target(folder / "target")
    write_data(folder / "data.jsonl")
    shape: dict[str, Any] = {"taps": TAPS, "norm_before_fc": True, "norm_output": True}
    for name, changes in {"odd": shape, "plain": {}}.items():
        fit(config(folder, out=str(folder / f"{name}-run"), steps=1, **changes), silent, silent, Silent())
        export(folder / f"{name}-run", folder / name)
    return folder


def test_a_head_that_lent_the_targets_lm_head_gets_one_of_its_own(place: Path, tmp_path: Path) -> None:
    """With another draft vocabulary it cannot lend it any more; the rows begin as the target's."""
    shutil.copytree(place / "plain", place / "lent", dirs_exist_ok=True)
    weights = load_file(place / "lent" / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if name not in ("lm_head.weight", "d2t", "t2d")},
        place / "lent" / "model.safetensors",
    )
    about = json.loads((place / "lent" / "config.json").read_text(encoding="utf-8"))
    about["draft_vocab_size"] = about["vocab_size"]
    (place / "lent" / "config.json").write_text(json.dumps(about), encoding="utf-8")
    materials = prepare.gather(continued(place, tmp_path / "run", "lent"), "cpu", None, silent, silent)
    head: Any = materials.head
    expected = materials.target.model.get_output_embeddings().weight[head.draft_ids]
    torch.testing.assert_close(head.lm_head.weight, expected.float(), rtol=0, atol=0)


def continued(place: Path, out: Path, head: str, **changes: Any) -> TrainConfig:
    return config(place, out=str(out), from_head=str(place / head), steps=1, **changes)


@pytest.mark.parametrize("features", ["live", "disk"])
@pytest.mark.parametrize("said", [{}, {"taps": (6, 1, 3), "norm_output": True}], ids=["", "said again"])
def test_the_heads_own_shape_is_trained(place: Path, tmp_path: Path, features: Any, said: dict[str, Any]) -> None:
    run = continued(place, tmp_path / "run", "odd", features=features, **said)
    materials = prepare.gather(run, "cpu", None, silent, silent)
    expected = prepare.LiveFeatures(materials.target, materials.dataset.train, TAPS).batch([0]).features
    assert materials.head.spec.taps == TAPS
    torch.testing.assert_close(materials.train.batch([0]).features.float(), expected, rtol=0.01, atol=0.01)
    assert fit(run, silent, silent, Silent()) == "finished"
    export(tmp_path / "run", tmp_path / "head")
    card = (tmp_path / "head" / "README.md").read_text(encoding="utf-8")
    assert "| taps | `hidden_states` 1, 3, 6 |" in card
    assert "| norms beyond the layer's own | of each tap, of the output fed back |" in card
    assert "| begun with | another head, odd, whose training this one continued |" in card
    assert not [name for name in ("start", "norm_output", "taps") if f"    {name} = " in card]


@pytest.mark.parametrize(
    ("head", "said", "words"),
    [
        ("odd", {"taps": (2, 4, 5)}, "taps 2,4,5 expected in .*, found 1,3,6: leave --taps out"),
        ("odd", {"norm_before_fc": False}, "norm_before_fc off expected in .*, found on: leave --norm-before-fc out"),
        ("odd", {"norm_output": False}, "norm_output off expected"),
        ("plain", {"norm_before_fc": True}, "norm_before_fc on expected in .*, found off"),
        ("plain", {"norm_output": True}, "norm_output on expected in .*, found off"),
        ("plain", {"taps": TAPS}, "taps 1,3,6 expected"),
    ],
)
def test_what_contradicts_the_head_is_refused(
    place: Path, tmp_path: Path, head: str, said: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        fit(continued(place, tmp_path / "run", head, **said), silent, silent, Silent())
    with pytest.raises(UserError, match="no --start random beside from_head"):
        continued(place, tmp_path / "run", head, start="random")


def test_a_run_begun_before_norms_could_be_left_unsaid_goes_on(place: Path, tmp_path: Path) -> None:
    run = config(place, out=str(tmp_path / "run"), steps=1)
    fit(run, silent, silent, Silent())
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace('"norm_output": null', '"norm_output": false'))
    assert fit(run, silent, silent, Silent()) == "finished"
    with pytest.raises(UserError, match="norm_output None"):
        fit(dataclasses.replace(run, norm_output=True), silent, silent, Silent())
    assert RunFolder(tmp_path / "run").newest() is not None
