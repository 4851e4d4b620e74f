from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from eagle_chat.cli.options import CONFIGS, Given, Settings, home_of
from eagle_chat.cli.settings import resolve
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from tests.cli.conftest import Program


def config_file(tmp_path: Path, text: str, name: str = "own.toml") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_given_is_the_dataclasses_defaults() -> None:
    assert resolve(Given()) == Settings(LoadConfig(), TreeConfig(), SamplingConfig(), None)


def test_every_field_of_the_configs_has_an_option_except_paths() -> None:
    homes = {home_of(option) for option in get_type_hints(Given)} - {None}
    expected = {(config, field.name) for config in CONFIGS for field in fields(config)}
    assert homes == expected - {(TreeConfig, "paths")}


def test_all_flags_arrive(program: Program) -> None:
    flags = (
        "--base X --draft none --policy static --depth 3 --top-k 4 --total-tokens -1 --temperature 0.7 "
        "--top-p 0.9 --sample-top-k 40 --min-p 0.1 --seed 7 --verify rejection --max-new-tokens 9 --stop a "
        "--stop b --ignore-stop-ids --dtype float32 --device cpu --device-map auto --load-in-4bit "
        "--revision r --template t --attention eager --taps 2,15,27 --draft-vocab 4000 --no-draft-int8 --system S"
    )
    engine = program("generate", "-p", "q", *flags.split()).engine
    assert engine.load == LoadConfig(
        base="X",
        draft="none",
        dtype="float32",
        device="cpu",
        device_map="auto",
        load_in_4bit=True,
        revision="r",
        template="t",
        attention="eager",
        taps=(2, 15, 27),
        draft_vocab="4000",
        draft_int8=False,
    )
    assert engine.trees == [TreeConfig("static", 3, 4, -1)]
    assert engine.sampling == [SamplingConfig(0.7, 0.9, 40, 0.1, 7, "rejection", 9, ("a", "b"), True)]
    assert engine.asked == [[{"role": "system", "content": "S"}, {"role": "user", "content": "q"}]]


def test_options_stand_before_or_after_the_command_and_the_later_wins(program: Program) -> None:
    engine = program("--base", "X", "--seed", "1", "generate", "-p", "q", "--seed", "2").engine
    assert (engine.load.base, engine.sampling[0].seed) == ("X", 2)
    engine = program("--base", "X", "--top-k", "2", stdin="q\n").engine
    assert (engine.load.base, engine.trees[0].top_k) == ("X", 2)


def test_flag_before_variable_before_file_before_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config_file(tmp_path, 'seed = 1\ntop-k = 1\ndepth = 1\nbase = "file"\n')
    monkeypatch.setenv("EAGLE_CHAT_SEED", "2")
    monkeypatch.setenv("EAGLE_CHAT_DEPTH", "2")
    monkeypatch.setenv("EAGLE_CHAT_TEMPERATURE", "")
    settings = resolve(Given(seed=3, config=path))
    assert (settings.sampling.seed, settings.tree.depth, settings.tree.top_k) == (3, 2, 1)
    assert settings.load.base == "file"
    assert settings.sampling.temperature == SamplingConfig().temperature


def test_the_users_own_file_and_the_variable_that_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file(tmp_path, "seed = 1", "config/eagle-chat/config.toml")
    assert resolve(Given()).sampling.seed == 1
    monkeypatch.setenv("EAGLE_CHAT_CONFIG", str(config_file(tmp_path, "seed = 2")))
    assert resolve(Given()).sampling.seed == 2
    assert resolve(Given(config=config_file(tmp_path, "seed = 3", "third.toml"))).sampling.seed == 3


def test_a_flag_can_undo_what_the_file_says(tmp_path: Path, program: Program) -> None:
    path = str(config_file(tmp_path, "load-in-8bit = true"))
    assert program("--config", path, "generate", "-p", "q").engine.load.load_in_8bit
    given = program("--config", path, "--no-load-in-8bit", "--load-in-4bit", "generate", "-p", "q").engine.load
    assert (given.load_in_8bit, given.load_in_4bit) == (False, True)


def test_lists_in_the_file_and_texts_in_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = config_file(tmp_path, '\ufeffstop = ["a", "b"]\ntaps = [2, 15, 27]\nignore_stop_ids = true\n')
    settings = resolve(Given(config=path))
    assert settings.sampling.stop == ("a", "b")
    assert settings.sampling.ignore_stop_ids
    assert settings.load.taps == (2, 15, 27)
    monkeypatch.setenv("EAGLE_CHAT_STOP", '["x')
    monkeypatch.setenv("EAGLE_CHAT_TAPS", "1,2,3")
    settings = resolve(Given(config=path))
    assert settings.sampling.stop == ('["x',)
    assert settings.load.taps == (1, 2, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tempertaure = 1", ["tempertaure", "did you mean 'temperature'"]),
        ("zzz = 1", ["'zzz'", "max_new_tokens"]),
        ("[sampling]\nseed = 1", ["unknown key 'sampling'"]),
        ("x = 1\nseed = ?", ["TOML", "line 2"]),
        ('depth = "deep"', ["own.toml: depth", "integer", "'deep'"]),
        ("depth = 0", ["depth must be at least 1, found 0"]),
        ('policy = "tree"', ["own.toml: policy", "'static', 'dynamic', 'chain' or 'none'", "'tree'"]),
        ("load_in_8bit = true\nload_in_4bit = true", ["give only one of the two"]),
        ('taps = "1,2"', ["three numbers", "'1,2'"]),
        ("config = 'other.toml'", ["unknown key 'config'"]),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, text: str, said: list[str], program: Program) -> None:
    ran = program("generate", "-p", "q", "--config", str(config_file(tmp_path, text)))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("error: ")
    for words in said:
        assert words in ran.err


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_CHAT_SEED", "seven")
    with pytest.raises(UserError, match=r"variable EAGLE_CHAT_SEED: .*found 'seven'"):
        resolve(Given())


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_no_file_to_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="a config file expected at"):
        resolve(Given(config=tmp_path / name))


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(b'system = "\xff"')
    with pytest.raises(UserError, match="must be a TOML file"):
        resolve(Given(config=path))
