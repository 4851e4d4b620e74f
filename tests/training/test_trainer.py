"""Runs that are interrupted continue the same curve; runs that differ are refused."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.files import sole_writer
from eagle_chat.training import store
from eagle_chat.training.checkpoints import BEST, LAST, RunFolder
from eagle_chat.training.config import TrainConfig
from eagle_chat.training.export import export
from eagle_chat.training.fit import fit
from eagle_chat.training.schedule import learning_rate, unroll_steps
from eagle_chat.training.view import Silent
from tests.training.tiny_run import config, save_target, write_data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and data."""
    folder = tmp_path_factory.mktemp("training")
    save_target(folder / "target")
    write_data(folder / "data.jsonl", repeat=4)
    return folder


def silent(*_: Any) -> None:
    """Says nothing."""


class Cut(Silent):
    """Presses Ctrl-C, so to speak, after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, row: dict[str, Any], tokens_per_second: float) -> None:
        if row["step"] == self.after:
            raise KeyboardInterrupt


def losses(folder: Path, kind: str = "train") -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in RunFolder(folder).curve() if row["kind"] == kind]


HARD: dict[str, Any] = {
    "head": "eagle3", "unroll": (1, 3), "dropout": 0.1, "ema": 0.9, "accumulate": 2, "validation": 0.3,
    "evaluate_every": 2, "weight_decay": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("changes", [HARD, {"head": "eagle", "unroll": (1,)}], ids=["eagle3", "eagle"])
def test_resume_continues_the_same_curve(place: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = config(place, **changes, out=str(tmp_path / "whole"), save_every=2)
    assert fit(whole, silent, silent, Silent()) == "finished"
    parts = dataclasses.replace(whole, out=str(tmp_path / "parts"))
    with pytest.raises(KeyboardInterrupt):  # killed in step 5: checkpoint 4 is the newest
        fit(parts, silent, silent, Cut(5))
    assert fit(parts, silent, silent, Silent()) == "finished"
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert [step for step, _ in losses(tmp_path / "parts")] == [1, 2, 3, 4, 5, 6]
    assert losses(tmp_path / "parts", "validation") == losses(tmp_path / "whole", "validation")
    one, other = (RunFolder(tmp_path / name).newest() for name in ("whole", "parts"))
    assert one is not None
    assert other is not None
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())


class Torn(Silent):
    """Is killed after a step, in the middle of the curve's next line."""

    def __init__(self, folder: Path, after: int) -> None:
        self.folder, self.after = folder, after

    def step(self, row: dict[str, Any], tokens_per_second: float) -> None:
        if row["step"] == self.after:
            with (self.folder / "curve.jsonl").open("a") as file:
                file.write('{"kind": "train", "step": 9, "acceptance": [0.')
            raise KeyboardInterrupt


def known_by(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def same_ending(one: Path, other: Path) -> bool:
    """Whether two runs have the same curve, times apart, and export the same heads."""
    curves = [[known_by(row) for row in RunFolder(folder).curve()] for folder in (one, other)]
    assert curves[0] == curves[1]
    for name in (BEST, LAST):
        left, right = (RunFolder(folder).load(folder / name) for folder in (one, other))
        assert left["step"] == right["step"]
        assert all(torch.equal(value, right["weights"][key]) for key, value in left["weights"].items())
    return True


@pytest.mark.parametrize("save_every", [2, 100])
@pytest.mark.parametrize("killed_after", [1, 3, 6])
def test_a_kill_at_any_moment_changes_nothing(place: Path, tmp_path: Path, save_every: int, killed_after: int) -> None:
    """Also before the first checkpoint, and with a line half written."""
    settings: dict[str, Any] = {"validation": 0.3, "evaluate_every": 4, "save_every": save_every}
    whole, parts = (config(place, out=str(tmp_path / name), **settings) for name in ("whole", "parts"))
    fit(whole, silent, silent, Silent())
    with pytest.raises(KeyboardInterrupt):
        fit(parts, silent, silent, Torn(tmp_path / "parts", killed_after))
    assert fit(parts, silent, silent, Silent()) == "finished"
    assert same_ending(tmp_path / "whole", tmp_path / "parts")
    export(tmp_path / "parts", tmp_path / "head")
    assert fit(parts, silent, silent, Silent()) == "finished", "a finished run, started again"
    assert same_ending(tmp_path / "whole", tmp_path / "parts")


def test_an_ending_before_the_end_validates_nothing(place: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation": 0.3, "evaluate_every": 4}
    whole, parts = (config(place, out=str(tmp_path / name), **settings) for name in ("whole", "parts"))
    fit(whole, silent, silent, Silent())
    while fit(dataclasses.replace(parts, minutes=1e-6), silent, silent, Silent()) != "finished":
        pass
    assert same_ending(tmp_path / "whole", tmp_path / "parts")
    assert [step for step, _ in losses(tmp_path / "parts", "validation")] == [4, 6]


def test_a_folder_has_one_writer(place: Path, tmp_path: Path) -> None:
    """The same command started twice would mix two curves and lose one run's checkpoints."""
    run = config(place, out=str(tmp_path / "run"), steps=2)
    with sole_writer(tmp_path / "run"), pytest.raises(UserError, match="another run at work"):
        fit(run, silent, silent, Silent())
    assert fit(run, silent, silent, Silent()) == "finished"


def test_resume_keeps_the_draft_vocabulary(place: Path, tmp_path: Path) -> None:
    run = config(place, out=str(tmp_path / "run"), steps=2)
    fit(run, silent, silent, Silent())
    folder = RunFolder(tmp_path / "run")
    saved = folder.newest()
    assert saved is not None
    ids = saved["draft_ids"]
    assert ids.shape == (50,)
    assert bool((ids.diff() > 0).all())
    changed = saved | {"draft_ids": ids.flip(0).sort().values.clone()}
    changed["draft_ids"][0] = next(token for token in range(97) if token not in ids.tolist())
    folder.save(changed, 2, 1)
    longer = dataclasses.replace(run, out=str(tmp_path / "run"))
    fit(longer, silent, silent, Silent())
    again = folder.newest()
    assert again is not None
    assert torch.equal(again["draft_ids"], changed["draft_ids"])


def test_a_run_with_other_settings_or_text_is_refused(place: Path, tmp_path: Path) -> None:
    run = config(place, out=str(tmp_path / "run"), steps=1)
    fit(run, silent, silent, Silent())
    with pytest.raises(UserError, match=r"learning_rate 0\.01 \(now 0\.5\)"):
        fit(dataclasses.replace(run, learning_rate=0.5), silent, silent, Silent())
    write_data(tmp_path / "other.jsonl", repeat=2)
    with pytest.raises(UserError, match="data"):
        fit(dataclasses.replace(run, data=(str(tmp_path / "other.jsonl"),)), silent, silent, Silent())


def test_features_on_disk_give_the_curve_of_live_ones(place: Path, tmp_path: Path) -> None:
    said: list[str] = []
    curves = []
    for mode in ("live", "disk"):
        run = config(place, out=str(tmp_path / mode), features=mode, features_dtype="float16", steps=4)
        fit(run, said.append, silent, Silent())
        curves.append([loss for _, loss in losses(tmp_path / mode)])
    assert curves[0] == pytest.approx(curves[1], rel=2e-3)
    estimate = next(text for text in said if text.startswith("features of"))
    assert "MiB" in estimate
    assert "about" in estimate


def test_features_resume_after_a_kill(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_SAMPLES", 4)
    run = config(place, out=str(tmp_path / "run"), features="disk", steps=1)

    def killed(what: str, fraction: float) -> None:
        if fraction > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(run, silent, killed, Silent())
    folder = tmp_path / "run" / "features" / "train"
    first = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    assert 0 < len(first) < 5
    fit(run, silent, silent, Silent())
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}.items() > first.items()
    before = {path.name for path in folder.glob("*.safetensors")}
    more = dataclasses.replace(run, out=str(tmp_path / "more"), features_folder=str(folder.parent))
    fit(dataclasses.replace(more, head="eagle", taps=()), silent, silent, Silent())
    assert {path.name for path in folder.glob("*.safetensors")} == before, "an eagle head reads the same final states"
    other = dataclasses.replace(more, out=str(tmp_path / "other"), taps=(0, 1, 2))
    with pytest.raises(UserError, match="another taps"):
        fit(other, silent, silent, Silent())


def test_features_are_found_again_by_their_text(place: Path, tmp_path: Path) -> None:
    run = config(place, out=str(tmp_path / "run"), features="disk", steps=2, validation=0.0)
    fit(run, silent, silent, Silent())
    folder = tmp_path / "run" / "features" / "train"
    first = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    write_data(tmp_path / "other.jsonl", repeat=2)
    longer = dataclasses.replace(
        run,
        data=(*run.data, str(tmp_path / "other.jsonl")),
        out=str(tmp_path / "new"),
        features_folder=str(folder.parent),
    )
    fit(longer, silent, silent, Silent())
    second = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}
    kept = first.items() & second.items()
    assert len(kept) >= len(first) - 1, "all but the last, half-filled file serve the longer text too"
    assert len(second) > len(first)


def test_a_loss_that_is_no_number_stops_the_run(place: Path, tmp_path: Path) -> None:
    run = config(place, out=str(tmp_path / "run"), learning_rate=1e30, warmup=0.0, steps=20)
    with pytest.raises(EagleChatError, match=r"finite loss expected.*begin anew .* and another --out"):
        fit(run, silent, silent, Silent())
    anew = dataclasses.replace(run, out=str(tmp_path / "anew"), learning_rate=1e-3)
    assert fit(anew, silent, silent, Silent()) == "finished", "the advice can be followed"


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_no_checkpoint_holds_weights_that_are_no_numbers(
    place: Path, tmp_path: Path, validation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruin = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *rest: Any) -> None:
        ruin(self, *rest)
        if steps.popleft():
            self.param_groups[0]["params"][0].data[0] = torch.nan

    steps = collections.deque([False, False, True])
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    each_step: dict[str, Any] = {"save_every": 1, "evaluate_every": 1, "keep_checkpoints": 9, "validation": validation}
    run = config(place, out=str(tmp_path / "run"), **each_step)
    with pytest.raises(EagleChatError, match=r"finite weights expected, .* at step 3: begin anew"):
        fit(run, silent, silent, Silent())
    assert len(list((tmp_path / "run").glob("checkpoint-*.pt"))) == 2
    for path in (tmp_path / "run").glob("*.pt"):
        weights = torch.load(path, weights_only=True)["weights"]
        assert all(bool(value.isfinite().all()) for value in weights.values()), path.name


def test_out_of_time_is_saved_and_continued(place: Path, tmp_path: Path) -> None:
    run = config(place, out=str(tmp_path / "run"), steps=3)
    assert fit(dataclasses.replace(run, minutes=1e-6), silent, silent, Silent()) == "out of time"
    assert fit(run, silent, silent, Silent()) == "finished"
    assert [step for step, _ in losses(tmp_path / "run")] == [1, 2, 3]


def test_a_curve_cut_in_the_middle_of_a_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_to_curve({"kind": "train", "step": 1})
    with (tmp_path / "curve.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    assert folder.curve() == [{"kind": "train", "step": 1}]
    folder.add_to_curve({"kind": "train", "step": 2})  # as earlier versions went on
    assert folder.curve() == [{"kind": "train", "step": 1}]
    folder.cut_curve(1)
    assert (tmp_path / "curve.jsonl").read_text() == json.dumps({"kind": "train", "step": 1}) + "\n"


def test_what_is_left_out_of_the_text_is_told(place: Path, tmp_path: Path) -> None:
    rows = [{"data": ["a"]}, {"data": ["a", None]}, {"data": ["a", "b", 3, "d"]}]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said: list[str] = []
    run = config(place, out=str(tmp_path / "run"), steps=1, data=(f"{place}/data.jsonl", str(tmp_path / "more.jsonl")))
    fit(run, said.append, silent, Silent())
    assert "conversations left out: 1 no answer, 1 turn that is not text" in said
    assert "conversations shortened: 1 turn that is not text" in said


def test_schedule() -> None:
    run = TrainConfig(data=("x",), out="y", learning_rate=1.0, warmup=0.1, final_rate=0.1, unroll=(2, 4))
    rates = [learning_rate(run, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert [unroll_steps(run, step, 10) for step in range(10)] == [2] * 5 + [4] * 5
