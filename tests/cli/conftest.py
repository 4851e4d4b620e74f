from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import eagle_chat
from eagle_chat.cli.app import main
from tests.cli.fake_engine import FakeEngine, Loader, Script
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no config file of the person who runs the tests."""
    for name in os.environ:
        if name.startswith("EAGLE_CHAT_") or name in ("NO_COLOR", "PYTHONIOENCODING"):
            monkeypatch.delenv(name)
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))


@dataclass
class Ran:
    code: int
    out: str
    err: str
    engines: list[FakeEngine]

    @property
    def engine(self) -> FakeEngine:
        (engine,) = self.engines
        return engine


class Program:
    """`eagle-chat` in this process, on the fake engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *argv: str, stdin: str | io.StringIO = "", **script: Any) -> Ran:
        loader = Loader(Script(**script))
        self._monkeypatch.setattr(eagle_chat, "load_engine", loader, raising=False)
        source = io.StringIO(stdin) if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", source)
        code = main(argv)
        out, err = self._capsys.readouterr()
        return Ran(code, out, err, loader.engines)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(monkeypatch, capsys)


def command_line(*argv: str, **script: Any) -> list[str]:
    """The command that runs `eagle-chat` on the fake engine as a process of its own."""
    return [sys.executable, "-m", "tests.cli.fake_engine", json.dumps(script), *argv]


def run_process(
    *argv: str, stdin: bytes = b"", env: dict[str, str] | None = None, **script: Any
) -> subprocess.CompletedProcess[bytes]:
    command = command_line(*argv, **script)
    return subprocess.run(
        command, input=stdin, capture_output=True, env={**os.environ, **(env or {})}, cwd=ROOT, timeout=PATIENCE
    )
