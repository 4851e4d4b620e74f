"""The client against traffic that was recorded from real servers by `record.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle_chat.core.config import LoadConfig, SamplingConfig
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.counters import parse
from eagle_chat.serving.remote import connect
from tests.serving.fake_server import RECORDED, recorded

NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))


def chunks(answer: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [line.strip().removeprefix("data: ") for line in answer["stream"] if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_there_is_something_to_replay() -> None:
    assert {"eagle-chat", "vllm"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_text_tokens_and_figures_are_those_of_the_recording(name: str) -> None:
    server, value = recorded(name)
    with server:
        engine = connect(ServerConfig(server.url), LoadConfig())
        for number, answer in enumerate(value["answers"]):
            metrics = Metrics()
            question: Any = [{"role": "user", "content": answer["question"]}]
            for event in engine.stream(question, sampling=SamplingConfig(max_new_tokens=24)):
                metrics.add(event)
            told = chunks(answer)
            choices = [choice for chunk in told for choice in chunk["choices"]]
            assert metrics.text == "".join(choice["delta"].get("content") or "" for choice in choices)
            assert metrics.token_ids == [token for choice in choices for token in choice.get("token_ids") or ()]
            usage = told[-1]["usage"]
            assert (metrics.prompt_tokens, len(metrics.token_ids)) == (
                usage["prompt_tokens"],
                usage["completion_tokens"],
            )
            assert metrics.finish_reason == choices[-1]["finish_reason"]
            assert metrics.tau is not None
            assert metrics.tau > 1.0
            assert 1 <= len(metrics.counts_by_depth) <= 3  # a chain of three was recorded
            if value["pages"]:
                before, after = (parse(page) for page in value["pages"][number : number + 2])
                assert before is not None
                assert after is not None
                counted = after.since(before)
                assert (metrics.cycles, metrics.drafted_tokens) == (counted.drafts, counted.draft_tokens)
                assert [got for _, got in metrics.counts_by_depth] == list(counted.by_position.values())
                assert metrics.tau == pytest.approx(1 + counted.accepted_tokens / counted.drafts)
            if "speculative" in usage:
                assert metrics.cycles == usage["speculative"]["cycles"]
                # The target may have accepted more than was kept: the budget cuts the last cycle.
                assert metrics.tau == pytest.approx(usage["speculative"]["tau"], abs=3 / metrics.cycles)
    assert [body["messages"][0]["content"] for body in server.asked] == [one["question"] for one in value["answers"]]
