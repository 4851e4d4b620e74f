"""Another engine as a child process that answers in JSON lines (see `workers/python_worker.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from eagle_chat.bench.runner import Stop, Stopped

START_SECONDS = 600.0
"""vLLM compiles on its first start."""
ANSWER_SECONDS = 600.0
POLL_SECONDS = 0.1
REST_SECONDS = 0.3
"""Between two engines: the threads of the one before still spin for a moment, waiting for work."""
END_SECONDS = 10.0


class PeerError(Exception):
    """This engine cannot take part; the message says why in one line."""


@dataclass(frozen=True)
class Peer:
    """How to start an engine. `format`: of its weights, for people. `environment`: variables it needs."""

    name: str
    format: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Reading:
    """One answer. The first step, with the prefill, took `first_seconds` and gave `first_tokens`; `steps` counts all
    steps (None where the engine does not tell); times are seconds from asking."""

    token_ids: list[int]
    first_tokens: int
    first_seconds: float
    seconds: float
    steps: int | None


class Worker:
    """A running peer. Leaving the context ends it."""

    def __init__(self, peer: Peer, stop: Stop = lambda: False) -> None:
        """Starts the process and returns at once; `wait_ready` says whether it came up."""
        self.peer, self._stop = peer, stop
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        try:
            self._process = subprocess.Popen(
                peer.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=os.environ | dict(peer.environment),
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is ours
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"it could not be started ({error})") from error
        threading.Thread(target=self._listen, name=f"peer {peer.name}", daemon=True).start()

    def wait_ready(self) -> dict[str, str]:
        """Its versions. PeerError where it cannot start, `Stopped` where a person does not want to wait."""
        versions: dict[str, str] = self._receive("ready", START_SECONDS)["ready"]
        return versions

    def ask(self, prompt: Sequence[int], max_new_tokens: int, stop_ids: Sequence[int]) -> Reading:
        """The greedy answer to `prompt`. PeerError where it fails, `Stopped` where a person wants to stop."""
        time.sleep(REST_SECONDS)
        asked = {"prompt": list(prompt), "max_new_tokens": max_new_tokens, "stop_ids": list(stop_ids)}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(self._last_words()) from error
        answer = self._receive("token_ids", ANSWER_SECONDS)
        return Reading(**{name: answer[name] for name in Reading.__dataclass_fields__})

    def close(self) -> None:
        """End the process: kindly, then by force."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS if not self._stop() else POLL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _receive(self, key: str, patience: float) -> dict[str, Any]:
        """The next object that has `key`; other lines are a library's talk."""
        late = time.monotonic() + patience
        while time.monotonic() < late:
            if self._stop():
                raise Stopped
            try:
                line = self._lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if line is None:
                raise PeerError(self._last_words())
            value = _object(line)
            if key in value:
                return value
        raise PeerError(f"it gave no answer within {patience:g} s")

    def _last_words(self) -> str:
        """Why the process ended: its code and the last line of what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        said = next((line for line in reversed(lines) if _is_reason(line)), lines[-1] if lines else "it said nothing")
        return f"it ended with code {self._process.returncode}: {said[:300]}"


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_reason(line: str) -> bool:
    """Whether a line of a traceback looks like the error itself."""
    return "Error" in line.split(":")[0] and not line.startswith(("File", "(", "["))
