"""`eagle-chat train` from the command line: whole way, Ctrl-C, mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_chat.cli.app import main
from eagle_chat.core.errors import UserError
from eagle_chat.training.checkpoints import RunFolder
from tests.patience import PATIENCE
from tests.training.tiny_run import save_target, write_data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    save_target(folder / "target", brief=True)
    write_data(folder / "data.jsonl", repeat=4)
    (folder / "run.toml").write_text(
        f'data = ["{folder}/data.jsonl"]\nout = "{folder}/run"\nbase = "{folder}/target"\ndraft_vocab = 50\n'
        'unroll = [2]\nsteps = 8\nbatch_tokens = 150\nvalidation = 0.3\nsave_every = 100\ndevice = "cpu"\n'
    )
    return folder


def test_from_text_to_figures(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = ["--out", f"{place}/corpus", "--base", f"{place}/target", "--answers", "6", "--batch", "14"]
    options = [
        "--max-new-tokens",
        "10",
        "--min-answer-tokens",
        "1",
        "--min-question-words",
        "1",
        "--temperatures",
        "0.7,1",
    ]
    assert main(["train", "corpus", *corpus, *options, "--question-temperature", "1.5"]) == 0
    told = capsys.readouterr()
    assert "6 conversations, 6 answers" in told.err
    assert "coverage by draft vocabulary" in told.err
    assert told.out == ""

    assert (
        main(
            [
                "train",
                "fit",
                "--config",
                f"{place}/run.toml",
                "--data",
                f"{place}/corpus",
                "--data",
                f"{place}/data.jsonl",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "step 8/8" in told.err
    assert "validation: loss" in told.err
    assert told.out == ""

    assert main(["train", "export", "--run", f"{place}/run", "--out", f"{place}/head"]) == 0
    questions = place / "questions.jsonl"
    questions.write_text('{"turns": ["Hello?", "More?"]}\n{"prompt": "Who?"}\n')
    capsys.readouterr()
    measured = ["--draft", f"{place}/head", "--base", f"{place}/target", "--data", f"{place}/data.jsonl"]
    asked = ["--validation", "0", "--questions", str(questions), "--max-new-tokens", "12", "--steps", "2", "--json"]
    assert main(["train", "evaluate", *measured, *asked, "--dtype", "float32"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["live"]["questions"] == 2
    assert figures["live"]["tau"] >= 1.0
    assert len(figures["offline"]["by_step"]) == 2
    assert figures["offline"]["samples"] == 20
    (place / "figures.json").write_text(json.dumps(figures))
    export = [
        "--run",
        f"{place}/run",
        "--out",
        f"{place}/head",
        "--weights",
        "last",
        "--figures",
        f"{place}/figures.json",
    ]
    assert main(["train", "export", *export]) == 0
    assert "live, tau" in (place / "head" / "README.md").read_text(encoding="utf-8")


def test_evaluating_takes_what_training_takes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head trained with a system message, on a revision or on a quantised target is measured in the same way."""
    seen: dict[str, Any] = {}

    def load(config: Any) -> Any:
        seen["loading"] = config
        return SimpleNamespace(target=SimpleNamespace(dtype="float32"))

    def offline(*given: Any) -> dict[str, Any]:
        seen["offline"] = given[-1]
        return {"by_step": [], "chain_tau": 1.0}

    def live(_engine: Any, questions: Any, *_: Any) -> Any:
        seen["questions"] = questions
        raise UserError("enough")

    monkeypatch.setattr("eagle_chat.load_engine", load)
    monkeypatch.setattr("eagle_chat.training.evaluate.offline", offline)
    monkeypatch.setattr("eagle_chat.training.evaluate.live", live)
    (place / "one.txt").write_text("Who?\n")
    given = ["--draft", "x", "--data", "a", "--questions", f"{place}/one.txt", "--system", "Be kind"]
    assert main(["train", "evaluate", *given, "--revision", "v2", "--load-in-8bit"]) == 2
    assert (seen["loading"].revision, seen["loading"].load_in_8bit, seen["loading"].load_in_4bit) == ("v2", True, False)
    assert seen["offline"] == "Be kind"
    assert seen["questions"] == [[{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Who?"}]]


def test_ctrl_c_saves_and_the_same_command_goes_on(place: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "eagle_chat",
        "train",
        "fit",
        "--config",
        f"{place}/run.toml",
        "--out",
        f"{tmp_path}/run",
    ]
    many = [*command, "--steps", "100000"]
    process = subprocess.Popen(many, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + PATIENCE
        while len(RunFolder(tmp_path / "run").curve()) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted: saved in" in err
    assert "Traceback" not in err
    saved = RunFolder(tmp_path / "run").newest()
    rows = [row for row in RunFolder(tmp_path / "run").curve() if row["kind"] == "train"]
    assert saved is not None
    assert saved["position"]["step"] == rows[-1]["step"] >= 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit"], "data, out expected, found none"),
        (["fit", "--out", "x", "--data", "no.jsonl", "--exclude", "no"], "check --exclude"),
        (["fit", "--out", "x", "--data", "a", "--unroll", "two"], "whole numbers expected for --unroll, found two"),
        (["fit", "--out", "x", "--data", "a", "--tracker", "trackio"], "the package trackio expected"),
        (["corpus", "--out", "x", "--exclude", "no"], "check --exclude"),
        (["evaluate", "--draft", "x"], "--data or --questions expected"),
        (["evaluate", "--draft", "x", "--limit", "0"], "--limit"),
        (["evaluate", "--draft", "x", "--limit", "-1"], "--limit"),
        (["evaluate", "--draft", "x", "--steps", "0"], "--steps"),
        (["evaluate", "--draft", "x", "--steps", "-2"], "--steps"),
        (["evaluate", "--draft", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["evaluate", "--draft", "x", "--validation", "-1"], "--validation"),
        (["fit", "--out", "x", "--data", "a", "--epochs", "inf"], "a finite epochs expected, found inf"),
        (["corpus", "--out", "file"], "a folder to write into expected, found file (File exists)"),
        (["corpus", "--out", "file/below"], "found file/below (Not a directory)"),
        (["corpus", "--out", "/proc/x"], "found /proc/x (No such file or directory)"),
        (["fit", "--data", "a", "--out", "file"], "a folder to write into expected, found file (File exists)"),
        (["fit", "--data", "a", "--out", "file/below"], "found file/below"),
        (["fit", "--data", "a", "--out", "x", "--features", "disk", "--features-folder", "file"], "found file"),
        (["export", "--run", "no", "--out", "x", "--figures", "list.json"], "JSON of another kind (list): make it"),
        (["export", "--run", "no", "--out", "x/../no"], "a folder for the head beside that of the run expected"),
        (["export", "--run", "no", "--out", "x"], "a training run with best.pt expected in no"),
        (["export", "--run", "no", "--out", "x", "--weights", "first"], "best or last expected"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eagle_chat.core.loading.load_engine", None)  # nothing of this should cost a model's loading
    (tmp_path / "file").write_text("")
    (tmp_path / "list.json").write_text("[]")
    monkeypatch.setattr("importlib.util.find_spec", _without("trackio"))
    base = [] if arguments[0] == "export" else ["--base", f"{place}/target"]
    assert main(["train", *arguments, *base]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith("error: ")


def _without(name: str) -> object:
    import importlib.util

    real = importlib.util.find_spec
    return lambda wanted, *rest: None if wanted == name else real(wanted, *rest)


def test_help_needs_no_torch() -> None:
    program = (
        "import sys; from eagle_chat.cli.app import main; main(['train', 'fit', '--help']); "
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("False")
    assert "--draft-vocab" in result.stdout
