"""`eagle-chat doctor` from the command line: page, JSON, exit codes, widths and encodings."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from eagle_chat.cli import theme as themes
from eagle_chat.cli.app import main
from eagle_chat.cli.findings_page import Page
from eagle_chat.doctor.findings import Finding, as_document, exit_code, ok
from tests.doctor.parts import Pair

Run = Callable[..., tuple[int, str, str]]
FINDINGS = [
    ok("machine", "device", "a processor"),
    Finding("head", "window", "note", "made for 64 positions", "short texts", "nothing"),
    Finding("head", "taps", "warning", "τ is [bold]low[/bold] :smile: " + "far " * 30, "\x1b[31mred", "--taps 1,2,3"),
    Finding("head", "sizes", "error", "too small", "another target", "--draft X", {"size": 3}, exit_code=3),
    Finding("run", "load", "error", "broken", "b", "c", exit_code=1),
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name in [name for name in os.environ if name.startswith("EAGLE_CHAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*argv: str) -> tuple[int, str, str]:
        code = main(["doctor", "--dtype", "float32", "--device", "cpu", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def arguments(pair: Pair) -> tuple[str, ...]:
    return ("--base", str(pair.target), "--draft", str(pair.head))


def test_a_good_pair_ends_with_0(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_chat.cli.doctor.TOKENS", 12)
    code, out, err = run(*arguments(Pair(tmp_path)))
    assert code == 0, out + err
    lines = out.splitlines()
    assert [line for line in lines if line.istitle()] == ["Machine", "Target", "Text", "Head", "Memory", "Run"]
    assert "lossless" in out
    assert "warning" in lines[-1]  # random weights


def test_a_misfit_ends_with_3_and_is_not_run(run: Run, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.change_tensors(pair.head, lambda tensors: tensors.pop("norm.weight"))
    code, out, _ = run(*arguments(pair))
    assert code == 3
    assert "norm.weight" in out
    assert "Run" not in out.splitlines()
    assert out.rstrip().splitlines()[-1].startswith("1 error")


def test_json_is_one_object_on_stdout(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*arguments(Pair(tmp_path)), "--json", "--no-run")
    value = json.loads(out)
    assert (code, value["exit_code"], value["ran"]) == (0, 0, False)
    assert {one["group"] for one in value["findings"]} == {"machine", "target", "text", "head", "memory"}
    assert all(
        set(one) <= {"group", "check", "severity", "found", "cause", "remedy", "values"} for one in value["findings"]
    )


def test_a_target_that_is_nowhere_is_a_line_and_exit_code_2(run: Run) -> None:
    code, _, err = run("--base", "./nowhere")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")


def page(width: int, encoding: str = "utf-8", terminal: bool = True, colour: bool = True) -> list[str]:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    console = Console(
        file=stream, width=width, force_terminal=terminal, markup=False, emoji=False, highlight=False,
        legacy_windows=False, no_color=not colour, color_system="truecolor" if colour else None,
    )  # fmt: skip
    shown = Page(console, themes.of_stream(stream, colour))
    shown.title("a + b")
    shown.show(FINDINGS)
    shown.verdict(FINDINGS, ran=True)
    stream.flush()
    return raw.getvalue().decode(encoding).splitlines()


def bare(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize("width", [30, 40, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
def test_the_page_fits_and_says_everything(width: int, encoding: str) -> None:
    lines = [bare(line) for line in page(width, encoding)]
    assert all(cell_len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    for word in (
        "[bold]low[/bold] :smile:",
        "--taps 1,2,3",
        "another target",
        "cause",
        "remedy",
        "2 errors, 1 warning",
    ):
        assert word in text
    assert "\x1b[31m" not in "".join(lines)
    assert ("τ is" in text) == (encoding == "utf-8")
    assert encoding == "utf-8" or "tau is" in text


def test_without_colour_the_signs_tell_the_severities_apart() -> None:
    lines = page(80, colour=False)
    assert not any("\x1b[3" in line or "\x1b[9" in line for line in lines)
    signs = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert signs == ["✓", "·", "!", "✗", "✗"]
    assert [line.split()[0] for line in page(80, "ascii", colour=False) if re.match(r"  \S", line)] == list("+.!xx")


def test_the_first_error_gives_the_exit_code() -> None:
    assert exit_code(FINDINGS) == 3
    assert exit_code(FINDINGS[:3]) == 0
    value = as_document(FINDINGS, target="a")
    assert value["counts"] == {"error": 2, "warning": 1, "note": 1}
    assert "exit_code" not in value["findings"][0]
    assert value["findings"][3]["exit_code"] == 3
