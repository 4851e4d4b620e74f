"""What the tests of the benchmark share: scripted events, small engines, questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from eagle_chat.bench.peers.worker import Peer
from eagle_chat.bench.plan import Candidate
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Answer
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Committed, Event, Finished, Started
from tests.tiny import STUBS, StubHead, answer, make_engine, make_head, make_target

QUESTIONS = [
    Question(1, "letters", ("abc", "and then?")),
    Question(2, "numbers", ("one two",)),
    Question("x3", "letters", ("hello there",)),
]


def started(policy: str = "dynamic", nodes: int = 8, prompt: int = 10, reused: int = 0) -> Started:
    tree = {"policy": policy, "total_tokens": nodes}
    return Started(prompt, reused, "target", "head", policy, tree, {"seed": 0}, "cpu", "float32", {})


def cycle(number: int, tokens: Sequence[int], seconds: Sequence[float], levels: Sequence[bool] = ()) -> Committed:
    """A decoding cycle; `seconds`: draft, verify, sample, commit, other."""
    split = dict(zip(("draft", "verify", "sample", "commit", "other"), seconds, strict=True))
    accepted = len(tokens) - 1
    origins: list[Any] = ["draft"] * accepted + ["target"]
    return Committed(number, list(tokens), origins, "", 8, accepted, split, list(levels))


def first(token: int = 1, seconds: float = 0.5) -> Committed:
    return Committed(0, [token], ["target"], "", 0, 0, {"prefill": seconds})


def scripted(question: Question, *cycles: Committed, turn: int = 0, **about: Any) -> Answer:
    tokens = 1 + sum(len(one.token_ids) for one in cycles)
    end = Finished("length", "", len(cycles), tokens)
    return Answer(question, turn, started(**about), (first(), *cycles), end, 2.0, 1000)


def candidate(policy: str = "dynamic", temperature: float = 0.0, tokens: int = 12, **tree: Any) -> Candidate:
    name: Any = "none" if policy == "plain" else policy
    return Candidate(policy, TreeConfig(name, **tree), SamplingConfig(temperature, max_new_tokens=tokens))


def stub_engine(kind: str, prompt_text: str, num_tokens: int = 60) -> Any:
    """An engine whose draft knows the greedy answer to one question, and tells it, hides it, or does both in turn."""
    target = make_target()
    plain = make_engine(target)
    prompt = plain.chat.encode([{"role": "user", "content": prompt_text}])
    script = prompt + answer(plain, prompt, sampling=SamplingConfig(max_new_tokens=num_tokens))
    return make_engine(target, StubHead(target, script, STUBS[kind]))


def tiny_engine(seed: int = 1, **target: Any) -> Any:
    """A random target with a random eagle3 head."""
    made = make_target(**target)
    return make_engine(made, make_head("eagle3", made, seed))


class ScriptedEngine:
    """Takes part in a comparison without a model, and writes down who was asked what, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float, int]] = []
        self.reason: Any = "length"
        self.too_long, self.broken = set[str](), set[str]()
        """Questions that do not fit the context; those at which the engine fails."""

    def new_state(self) -> Any:
        return object()

    def describe(self) -> dict[str, Any]:
        return {"target": "t", "head": "h", "device": "cpu", "dtype": "float32", "versions": {}}

    def stream(self, messages: Any, *, sampling: Any, tree: Any, state: Any, trace: bool = False) -> Iterator[Event]:
        self.asked.append((tree.policy, sampling.temperature, len(messages)))
        yield started(tree.policy)
        question = messages[-1]["content"]
        if question in self.broken:
            raise RuntimeError("out of memory")
        if question in self.too_long:
            yield Finished("context", "", 0, 0, "the context is full")
            return
        yield first()
        yield cycle(1, [2, 3], (0.1, 0.2, 0.0, 0.0, 0.0), [True])
        yield Finished(self.reason, "", 1, 3, "it broke" if self.reason == "error" else None)


SPEAKER = """
import json, sys
print("a library talks", flush=True)
print(json.dumps({"ready": {"speaker": "1.0"}}), flush=True)
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    if number == LIFE:
        print("ValueError: tired", file=sys.stderr)
        sys.exit(5)
    tokens = asked["prompt"][: asked["max_new_tokens"]]
    times = {"first_seconds": 0.5, "seconds": 1.5}
    print(json.dumps({"token_ids": tokens, "first_tokens": 1, "steps": 2, **times}), flush=True)
"""


def speaker(life: int = -1, name: str = "speaker") -> Peer:
    """Another engine: it repeats the prompt, and dies after `life` answers (never, if negative)."""
    return Peer(name, "paper", (sys.executable, "-c", SPEAKER.replace("LIFE", str(life))), {})
