"""Settings: files, types, unknown keys, impossible values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from eagle_chat.core.errors import UserError
from eagle_chat.training.config import CorpusConfig, TrainConfig, from_toml

NOT_BELOW_0 = ("noise", "step_decay", "weight_decay", "regression_weight", "classification_weight", "minutes")
FLOATS = [name for name, hint in get_type_hints(TrainConfig).items() if hint is float]


def test_a_whole_run_from_a_file_and_options_before_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('data = "a.jsonl"\nout = "run"\nunroll = [2, 2, 4]\nlearning-rate = 3e-3\nepochs = 2\nema = 0.99\n')
    config = from_toml(TrainConfig, file, {"out": "other", "unroll": (1,)})
    assert config == TrainConfig(data=("a.jsonl",), out="other", unroll=(1,), learning_rate=3e-3, epochs=2.0, ema=0.99)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("learning_rat = 1", "did you mean 'learning_rate'"),
        ('steps = "many"', "steps of type int expected, found 'many'"),
        ("steps = true", "steps of type int"),
        ("norm_output = 1", "norm_output of type bool"),
        ('unroll = ["a"]', "unroll of type int"),
        ("steps = ", "must be a TOML file"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'data = ["a"]\nout = "run"\n{line}\n')
    with pytest.raises(UserError, match=words):
        from_toml(TrainConfig, file, {})


def test_what_is_needed_is_named() -> None:
    with pytest.raises(UserError, match="data, out expected, found none: give --data"):
        from_toml(TrainConfig, None, {})
    with pytest.raises(UserError, match="TOML file expected"):
        from_toml(TrainConfig, Path("no/such.toml"), {})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head": "eagle2"}, "head to be one of eagle, eagle3"),
        ({"unroll": ()}, "unroll steps"),
        ({"unroll": (0,)}, "unroll steps"),
        ({"taps": (1, 2)}, "three taps"),
        ({"head": "eagle", "norm_output": True}, "with head eagle3 only"),
        ({"validation": 1.0}, "validation share"),
        ({"learning_rate": 0.0}, "learning rate above 0"),
        ({"steps": 0, "epochs": 0.0}, "steps or epochs"),
        ({"load_in_8bit": True, "load_in_4bit": True}, "one quantisation"),
        ({"data": ()}, "at least one file"),
        ({"steps": 5, "epochs": -1.0}, "epochs of at least 0"),
        ({"seed": -1}, "a seed of 0"),
        ({"seed": 2**63}, "a seed of 0"),
        ({"warmup": 1.0}, r"warmup in \[0, 1\) expected, found 1.0"),
        ({"final_rate": 2.0}, "final_rate of 0 to 1 expected, found 2.0"),
        *(({name: -0.5}, f"{name} of at least 0 expected, found -0.5") for name in NOT_BELOW_0),
        *(({name: math.nan}, f"a finite {name} expected, found nan") for name in FLOATS),
        *(({name: math.inf}, f"a finite {name} expected, found inf") for name in FLOATS),
    ],
)
def test_impossible_runs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TrainConfig(**{"data": ("a",), "out": "b", **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"out": ""}, "a folder"),
        ({"temperatures": ()}, "at least one temperature"),
        ({"temperatures": (-1.0,)}, "temperatures of 0 to 10"),
        ({"regenerate": True}, "a source"),
        ({"batch": 0}, "batch of at least 1"),
        ({"min_answer_tokens": -1}, "min_answer_tokens of at least 0"),
        ({"question_temperature": math.inf}, "a finite question_temperature"),
        ({"temperatures": (0.0, math.nan)}, "a finite temperatures"),
        ({"question_min_p": math.nan}, "a finite question_min_p"),
    ],
)
def test_impossible_corpora(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        CorpusConfig(**{"out": "b", **changes})
