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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log
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
    Origin,
    Started,
    Status,
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
    load_delay: float = 0.0
    stream_error: tuple[str, str] | None = None
    late_error: tuple[str, str] | None = None
    print_while_loading: str = ""
    echo: bool = False
    repeat: int = 1
    accepted: int = 1


class FakeChat:
    """Encodes a conversation as one token a message."""

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        return [len(message["content"]) for message in messages]

    def decode(self, token_ids: list[int]) -> str:
        return ""


class FakeEngine:
    """Keeps what it was asked."""

    def __init__(self, script: Script, load: LoadConfig) -> None:
        self.script = script
        self.load = load
        self.asked: list[list[dict[str, str]]] = []
        self.continued: list[list[int]] = []
        self.chat = FakeChat()
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
        messages: list[dict[str, str]] | list[int],
        *,
        sampling: SamplingConfig,
        tree: TreeConfig,
        state: object,
        trace: bool = False,
    ) -> Iterator[Event]:
        if messages and isinstance(messages[0], int):
            self.continued.append([token for token in messages if isinstance(token, int)])
        else:
            self.asked.append([dict(message) for message in messages if not isinstance(message, int)])
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
                    yield from traced(cycle, piece, script.accepted)
                yield committed(cycle, piece, script.accepted)
            if script.late_error:
                raise _error(*script.late_error)
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
            tree=json.loads(json.dumps(dataclasses.asdict(self.trees[-1]))),
            sampling=json.loads(json.dumps(dataclasses.asdict(self.sampling[-1]))),
            device="cpu",
            dtype="float32",
            versions={"eagle-chat": "0"},
            notes=list(self.script.notes),
        )


def committed(cycle: int, text: str, accepted: int = 1) -> Committed:
    """One token in the prefill; one bonus token and `accepted` drafted ones in a cycle, the text spread over them."""
    if cycle == 0:
        return Committed(0, [100], ["target"], text, 0, 0, {"prefill": 0.42}, pieces=[text])
    tokens = [100 + cycle] * (accepted + 1)
    levels = [True] * accepted + [False]
    origins: list[Origin] = [*(["draft"] * accepted), "target"]
    return Committed(
        cycle, tokens, origins, text, 8, accepted, dict(SECONDS), levels, split(text, accepted + 1)
    )  # fmt: skip


def split(text: str, count: int) -> list[str]:
    """`text` in `count` pieces."""
    size = -(-len(text) // count)
    return [text[at * size : (at + 1) * size] for at in range(count)]


# parent, token's text (None: the next piece of the answer), probability of the head; the root is node 0.
_TREE: list[tuple[int, str | None, float]] = [
    (0, None, 0.6), (0, " maybe", 0.3), (0, " not", 0.05),
    (1, None, 0.5), (1, ",", 0.4), (2, " so", 0.5), (2, " then", 0.2),
    (4, " x", 0.3), (4, "[b]", 0.1), (5, "\n", 0.2), (6, " ok", 0.4),
]  # fmt: skip
KEPT = 8


def traced(cycle: int, text: str, accepted: int = 1) -> Iterator[Event]:
    """A tree of three levels, of which `accepted` are accepted, at most two."""
    pieces = split(text, accepted + 1)
    nodes = [DraftNode(0, -1, 0, 40, "root", 1.0, 0.0, 0, "kept", 0)]
    ranks: Counter[int] = Counter()
    for place, (parent, word, q) in enumerate(_TREE, start=1):
        above = nodes[parent]
        label = word or (pieces[above.depth] if above.depth < accepted else f"w{place}")
        nodes.append(
            DraftNode(
                place,
                parent,
                above.depth + 1,
                40 + place,
                label,
                q,
                above.value + log(q),
                ranks[parent],
                "expanded",
                -1,
            )
        )
        ranks[parent] += 1
    best = {node.id for node in sorted(nodes, key=lambda node: -node.value)[:KEPT]}
    slots = {node: slot for slot, node in enumerate(sorted(best))}
    nodes = [dataclasses.replace(n, stage="kept", slot=slots[n.id]) if n.id in best else n for n in nodes]
    yield Drafted(cycle, nodes)
    path = [slots[node] for node in (0, 1, 4)[: accepted + 1]]
    parents = {slots[node.id]: slots.get(node.parent, -1) for node in nodes if node.id in best}
    judged = [VerifiedNode(0, 1.0, "accepted", 41, "w")]
    for slot in range(1, KEPT):
        status: Status = "accepted" if slot in path else "rejected" if parents[slot] in path else "unreached"
        judged.append(VerifiedNode(slot, 0.5, status))
    yield Verified(cycle, judged, path, 100 + cycle, pieces[-1])


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
        time.sleep(self.script.load_delay)
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
