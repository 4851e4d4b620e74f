from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT, Program
from tests.patience import PATIENCE

HEAVY = {"torch", "transformers", "pydantic", "rich", "numpy", "huggingface_hub", "prompt_toolkit"}
# Typer reads the options before a command's name with pydantic, even when the command is asked for help.
FOR_COMMANDS = HEAVY - {"pydantic"}


@pytest.mark.parametrize(
    ("argv", "heavy"),
    [
        (["--help"], HEAVY),
        (["-h"], HEAVY),
        (["--version"], HEAVY),
        (["generate", "--help"], FOR_COMMANDS),
        (["serve", "--help"], FOR_COMMANDS),
    ],
)
def test_help_and_version_import_nothing_heavy(argv: list[str], heavy: set[str]) -> None:
    script = (
        "import sys; from eagle_chat.cli.app import main; code = main(sys.argv[1:]);"
        f"sys.stderr.write(' '.join(name for name in {heavy} if name in sys.modules)); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *argv], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "eagle-chat" in ran.stdout


def test_module_is_the_program() -> None:
    command = [sys.executable, "-m", "eagle_chat", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert ran.returncode == 0
    assert ran.stdout.startswith("Usage: eagle-chat [OPTIONS] COMMAND")


def test_help_lists_every_option_with_its_default(program: Program) -> None:
    for argv in (("--help",), ("generate", "--help")):
        ran = program(*argv)
        assert ran.code == 0
        shown = re.sub(r"\s+", " ", ran.out)
        options = (
            "base draft policy depth top-k total-tokens temperature top-p sample-top-k min-p seed verify "
            "max-new-tokens stop dtype device device-map load-in-8bit load-in-4bit revision template "
            "attention taps draft-vocab draft-int8 system engine api-key config"
        )
        assert [name for name in options.split() if f"--{name} " not in shown] == []
        assert "[default: smollm2]" in shown
        assert "--ignore-stop-ids" not in shown


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--depht", "3"], "No such option: --depht"),
        (["generat"], "No such command 'generat'"),
        (["generate", "-p", "q", "--depth", "x"], "Invalid value for '--depth'"),
        (["generate", "-p", "q", "--depth"], "--depth"),
        (["generate", "-p", "q", "--policy", "tree"], "'tree'"),
        (["generate", "-p", "q", "--temperature", "-1"], "temperature must be between 0 and 100, found -1.0"),
        (["generate", "-p", "q", "--load-in-8bit", "--load-in-4bit"], "give only one of the two"),
        (["generate", "-p", "q", "--taps", "1,2"], "taps must be three numbers, found '1,2'"),
        (["generate", "-p", "q", "--base", ""], "a target is needed"),
        (["generate", "-p", "q", "rest"], "rest"),
        (["--json"], "--json"),
    ],
)
def test_usage_errors_are_one_line_and_load_nothing(program: Program, argv: list[str], said: str) -> None:
    ran = program(*argv)
    assert (ran.code, ran.out, ran.engines) == (2, "", [])
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


@pytest.mark.parametrize(
    ("kind", "code"), [("EagleChatError", 1), ("UserError", 2), ("HeadMismatchError", 3), ("Unknown", 1)]
)
@pytest.mark.parametrize("where", ["load_error", "stream_error"])
def test_exit_codes(program: Program, kind: str, code: int, where: str) -> None:
    ran = program("generate", "-p", "q", **{where: (kind, "expected A,\nfound [bold]B[/]: do C")})
    assert ran.code == code
    assert ran.out == ""
    last = ran.err.splitlines()[-1]
    if kind == "Unknown":
        assert last.startswith("error: RuntimeError: expected A, found [bold]B[/]: do C (")
        assert "EAGLE_CHAT_DEBUG=1" in last
    else:
        assert last == "error: expected A, found [bold]B[/]: do C"
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("kind", ["UserError", "Unknown"])
def test_debug_shows_the_traceback(program: Program, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("EAGLE_CHAT_DEBUG", "1")
    ran = program("generate", "-p", "q", load_error=(kind, "broken"))
    assert "Traceback (most recent call last)" in ran.err
    assert ran.err.splitlines()[-1].startswith("error: ")


def test_ctrl_c_while_loading(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.cli.fake_engine.Loader.__call__", interrupted)
    for argv in (["generate", "-p", "q"], []):
        ran = program(*argv)
        assert (ran.code, ran.out) == (130, "")
        assert "Traceback" not in ran.err
