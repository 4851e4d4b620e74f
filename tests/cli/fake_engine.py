"""An engine without a model: it tells a script of events.

`python -m tests.cli.fake_engine SCRIPT [arguments]` is `eagle-chat` on that engine; SCRIPT is the fields of
`Script` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from eagle_chat.core import errors
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.events import (
    Committed,
    Drafted,
    DraftNode,
    Event,
    Finished,
    FinishReason,
    Started,
    Verified,
    VerifiedNode,
)

SECONDS = {"draft": 0.02, "verify": 0.07, "sample": 0.004, "commit": 0.004, "other": 0.002}


@dataclass
class Script:
    """`pieces`: the text of each cycle, the first one the prefill's. The rest: what happens around it."""

    pieces: list[str] = field(default_factory=lambda: ["Hello", " wor", "ld", "."])
    held: str = ""
    reason: FinishReason = "stop"
    message: str | None = None
    notes: list[str] = field(default_factory=list)
    delay: float = 0.0
    load_error: tuple[str, str] | None = None
    stream_error: tuple[str, str] | None = None
    print_while_loading: str = ""
    echo: bool = False
    repeat: int = 1
    accepted: int = 1


class FakeEngine:
    """Keeps what it was asked."""

    def __init__(self, script: Script, load: LoadConfig) -> None:
        self.script = script
        self.load = load
        self.asked: list[list[dict[str, str]]] = []
        self.sampling: list[SamplingConfig] = []
        self.trees: list[TreeConfig] = []
        self.states: list[object] = []
        self.closed = 0

    def new_state(self) -> object:
        return object()

    def describe(self) -> dict[str, Any]:
        return {"target": self.load.base, "head": "fake", "device": "cpu", "dtype": "float32", "versions": {}}

    def stream(
        self,
        messages: list[dict[str, str]],
        *,
        sampling: SamplingConfig,
        tree: TreeConfig,
        state: object,
        trace: bool = False,
    ) -> Iterator[Event]:
        self.asked.append([dict(message) for message in messages])
        self.sampling.append(sampling)
        self.trees.append(tree)
        self.states.append(state)
        return self._events(trace)

    def _events(self, trace: bool) -> Iterator[Event]:
        script = self.script
        pieces = [json.dumps(self.asked[-1])] if script.echo else script.pieces * script.repeat
        finished = False
        try:
            yield self._started()
            if script.stream_error:
                raise _error(*script.stream_error)
            for cycle, piece in enumerate(pieces):
                time.sleep(script.delay)
                if trace and cycle:
                    yield from traced(cycle, piece)
                yield committed(cycle, piece, script.accepted)
            tokens = 1 + (len(pieces) - 1) * (1 + script.accepted)
            finished = True
            yield Finished(script.reason, script.held, len(pieces) - 1, tokens, script.message)
        finally:
            self.closed += not finished

    def _started(self) -> Started:
        return Started(
            prompt_tokens=11,
            reused_tokens=0,
            target=self.load.base,
            head="fake",
            policy=self.trees[-1].policy or "dynamic",
            tree=dataclasses.asdict(self.trees[-1]),
            sampling=dataclasses.asdict(self.sampling[-1]),
            device="cpu",
            dtype="float32",
            versions={"eagle-chat": "0"},
            notes=list(self.script.notes),
        )


def committed(cycle: int, text: str, accepted: int = 1) -> Committed:
    """One token in the prefill; one bonus token and `accepted` drafted ones in a cycle."""
    if cycle == 0:
        return Committed(0, [100], ["target"], text, 0, 0, {"prefill": 0.42})
    tokens = [100 + cycle] * (accepted + 1)
    levels = [True] * accepted + [False]
    return Committed(cycle, tokens, ["draft"] * accepted + ["target"], text, 8, accepted, dict(SECONDS), levels)


def traced(cycle: int, text: str) -> Iterator[Event]:
    """A tree of two nodes, of which the first is accepted."""
    yield Drafted(cycle, [DraftNode(i, 0, 1, 40 + i, text, 0.5, -0.7, i - 1, "kept", i) for i in (1, 2)])
    nodes = [VerifiedNode(0, 1.0, "accepted", 41, text), VerifiedNode(1, 0.9, "accepted", 50, "x")]
    yield Verified(cycle, [*nodes, VerifiedNode(2, 0.1, "rejected")], [0, 1], 50, "x")


def _error(name: str, message: str) -> Exception:
    kind: type[Exception] = getattr(errors, name, RuntimeError)
    return kind(message)


class Loader:
    """Stands in for `eagle_chat.load_engine`; remembers the engines it gave."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.engines: list[FakeEngine] = []

    def __call__(self, config: LoadConfig) -> FakeEngine:
        sys.stdout.write(self.script.print_while_loading)
        if self.script.load_error:
            raise _error(*self.script.load_error)
        self.engines.append(FakeEngine(self.script, config))
        return self.engines[-1]


if __name__ == "__main__":
    import eagle_chat
    from eagle_chat.cli.app import main

    # Whoever runs the tests in the background may have Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    vars(eagle_chat)["load_engine"] = Loader(Script(**json.loads(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
