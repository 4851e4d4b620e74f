from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_chat.cli.live import frame, text_width
from eagle_chat.cli.replay import Player
from eagle_chat.cli.show import Show
from eagle_chat.cli.theme import console
from eagle_chat.core import recording
from eagle_chat.core.assets import asset_path
from eagle_chat.core.events import Event
from tests.cli.conftest import ROOT, Program
from tests.cli.views import COLOUR, drawn, events, told, wrapped
from tests.patience import PATIENCE

if sys.platform != "win32":
    from tests.cli.terminal import Terminal


@pytest.fixture
def recorded(tmp_path: Path, program: Program) -> Path:
    path = tmp_path / "chat.jsonl"
    program("--record", str(path), stdin="one\ntwo [b]\n/continue\n", reason="length")
    return path


def test_a_recorded_chat_holds_every_answer(recorded: Path) -> None:
    runs = recording.read(recorded)
    assert [run.question for run in runs] == ["one", "two [b]", None]
    header = json.loads(recorded.read_text().splitlines()[0])
    assert (header["type"], header["version"]) == ("recording", 1)
    assert " ".join(header) == "type version target head policy tree sampling device dtype versions"
    assert all(told(run.events).text == "Hello world." for run in runs)
    assert recorded.stat().st_mode & 0o777 == 0o600


def test_a_replay_into_a_pipe_is_the_text(recorded: Path, program: Program) -> None:
    ran = program("replay", str(recorded))
    assert (ran.code, ran.out, ran.engines) == (0, "Hello world.\n" * 3, [])
    assert "> two [b]\n" in ran.err
    assert ran.err.count("7 tok · 20.0 tok/s") == 3


def test_what_generate_prints_is_a_recording(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(program("generate", "-p", "q", "--jsonl").out)
    assert program("replay", str(path)).out == "Hello world.\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["absent.jsonl"], "a recording expected at absent.jsonl, found none to read"),
        ([], "give a FILE, or --demo"),
        (["x", "--demo"], "give a FILE, or --demo"),
        (["--demo", "--speed", "-1"], "a speed from 0 to 1000"),
    ],
)
def test_what_cannot_be_played_is_one_line(program: Program, argv: list[str], said: str) -> None:
    ran = program("replay", *argv)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_recording_as_a_page(recorded: Path, tmp_path: Path, program: Program) -> None:
    out = tmp_path / "page.html"
    for more, answers in [((), 3), (("--beside", str(recorded)), 6)]:
        ran = program("replay", str(recorded), "--html", str(out), *more)
        assert (ran.code, ran.out, ran.engines) == (0, "", [])
        assert ran.err.startswith(f"written: {out} (")
        assert out.read_text().count('"question":') == answers
    ran = program("replay", "--demo", "--html", str(out))
    assert ran.code == 0
    assert '"question":"Write a Python function' in out.read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--html", "{folder}/page.txt"], "a name that ends in .html expected, found 'page.txt'"),
        (["--html", "{folder}/mine.html"], "a new file expected, found that"),
        (["--html", "{folder}/new.html", "--beside", "absent"], "a recording expected at absent"),
        (["--beside", "x"], "give --html too"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_line(
    tmp_path: Path, program: Program, more: list[str], said: str
) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("<!doctype html>\n<p>my own page")
    ran = program("replay", "--demo", *(word.replace("{folder}", str(tmp_path)) for word in more))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert said in ran.err
    assert mine.read_text().endswith("my own page")
    assert not (tmp_path / "new.html").exists()


def test_a_recording_that_cannot_be_written_is_said_first(program: Program, tmp_path: Path) -> None:
    ran = program("--record", str(tmp_path / "no" / "x.jsonl"), stdin="q\n")
    assert (ran.code, ran.engines) == (2, [])
    assert "give another --record" in ran.err


def test_the_demo_needs_neither_a_model_nor_torch() -> None:
    script = (
        "import sys; from eagle_chat.cli.app import main;"
        "code = main(['replay', '--demo', '--speed', '0']);"
        "sys.stderr.write('HEAVY' if {'torch', 'transformers'} & set(sys.modules) else ''); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert ran.returncode == 0
    assert "HEAVY" not in ran.stderr
    assert len(ran.stdout) > 100


def test_the_demo_is_sound() -> None:
    (run,) = recording.read(asset_path("recordings", "demo.jsonl"))
    metrics = told(run.events).metrics
    assert run.question
    assert metrics.finish_reason == "stop"
    assert metrics.tau is not None
    assert metrics.tau > 1.5


def test_a_replay_gives_the_pictures_of_the_live_run() -> None:
    """Live, and after the way through a file: the same rows at every event."""
    live = events(repeat=3)
    (run,) = recording.parse("".join(recording.lines([recording.Run("q", live)])))

    def pictures(some: list[Event]) -> list[str]:
        progresses = (told(some[:count]) for count in range(len(some)))
        return [
            drawn(frame(progress, wrapped(progress, 80, COLOUR), 80, 20, COLOUR), COLOUR, 80) for progress in progresses
        ]

    assert pictures(run.events) == pictures(live)


def test_seeking_and_stepping() -> None:
    run = recording.Run("q", events(repeat=3))
    show = Show(console(), COLOUR)
    player = Player(run, show, 1.0, stepping=True)
    player.go_to(5)
    assert show.progress.metrics.cycles == 5
    for key, cycles, step in [
        ("right", 5, 1), ("right", 5, 2), ("right", 5, 3), ("right", 6, 0), ("left", 5, 0), ("left", 4, 0),
        (" ", 4, None),
    ]:  # fmt: skip
        player._press(key)
        assert (show.progress.metrics.cycles, player._step) == (cycles, step)
    player.go_to(99)
    assert show.progress.metrics.cycles == 14
    player._press("right")
    assert player.ended
    assert text_width(80, inspector=True) == 79


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are needed")
def test_a_replay_in_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    recording.write(path, [recording.Run("what?", events(["word "], repeat=40))])
    with Terminal("replay", str(path), "--speed", "0.5", home=tmp_path, size=(90, 24)) as terminal:
        terminal.wait("> what?", "now 2")
        terminal.keys(" ")
        terminal.wait("space: play")
        terminal.keys("s")
        terminal.wait("[expand]")
        terminal.keys("\x1b[C")
        terminal.wait("[rerank]")
        for _ in range(12):
            terminal.keys("+")
        terminal.keys(" ")
        terminal.wait("tok ·")
        assert terminal.end() == 0
        assert terminal.text().count("word word word") >= 1
        assert "now 2" not in terminal.text()
        assert terminal.cursor_visible
    with Terminal("replay", str(path), home=tmp_path) as terminal:
        terminal.wait("now 2")
        terminal.keys("\x03")
        assert terminal.end() == 130
