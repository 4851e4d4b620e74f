from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.events import Reported, Started
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving.client import ServerError
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.remote import connect
from tests.serving.served import PATIENCE, GatedEngine, served

BODY: dict[str, Any] = {"model": "gated", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def health(http: httpx.Client) -> tuple[int, int]:
    value = http.get("/health").json()
    return value["running"], value["waiting"]


def events_of(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_an_answer_whole_and_in_chunks() -> None:
    engine = GatedEngine()
    with served(engine) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        (model,) = http.get("/v1/models").json()["data"]
        assert (model["id"], model["owned_by"], model["max_model_len"]) == ("gated", "eagle-chat", 1000)
        whole = http.post(CHAT, json={**BODY, "temperature": 0.5, "seed": 4, "stop": "X", "max_tokens": 9, "top_k": -1})
        streamed = http.post(CHAT, json={**BODY, "stream": True, "stream_options": {"include_usage": True}})
    value = whole.json()
    assert value["choices"][0]["message"] == {"role": "assistant", "content": "One two three."}
    assert value["choices"][0]["finish_reason"] == "stop"
    usage = value["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 7, 8)
    # Three cycles of a tree of 8 nodes, in each of which one drafted token was accepted and the next one was not.
    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 18}
    told = usage["speculative"]
    assert (told["cycles"], told["judged_by_position"], told["accepted_by_position"]) == (3, [3, 3], [3, 0])
    assert (told["tau"], told["seed"]) == (2.0, 4)
    sampling = engine.asked[0][1]
    assert (sampling.temperature, sampling.seed, sampling.stop, sampling.max_new_tokens) == (0.5, 4, ("X",), 9)
    *chunks, last = events_of(streamed)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "One two three."
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["stop"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 7
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "other"}, 404, "the model 'gated' expected, found 'other'"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content"),
        ({"temperature": -1}, 400, "temperature must be between 0 and 100"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 2}, 400, "n:"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, 400, "free text only"),
        ({"messages": [{"role": "user", "content": "x"}] * 1000}, 400, "less than 1000 tokens expected, found 1000"),
    ],
)
def test_what_cannot_be_met_is_refused_in_openais_words(change: Any, status: int, words: str) -> None:
    engine = GatedEngine()
    with served(engine) as url:
        response = httpx.post(url + CHAT, json={**BODY, **change}, timeout=PATIENCE)
    assert response.status_code == status
    error = response.json()["error"]
    assert words in error["message"]
    assert error["code"] == status
    assert engine.asked == []


def test_what_does_not_matter_is_left_alone() -> None:
    harmless = {"user": "me", "n": 1, "presence_penalty": 0, "tools": [], "stream_options": None, "logprobs": False}
    parts = [{"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": " kind"}]}]
    engine = GatedEngine()
    with served(engine) as url:
        body = {**BODY, **harmless, "messages": [*parts, *BODY["messages"]]}
        assert httpx.post(url + CHAT, json=body, timeout=PATIENCE).status_code == 200
    assert engine.asked[0][0] == [len("be kind"), 2]


def test_the_key_is_asked_for() -> None:
    with served(GatedEngine(), api_key="secret") as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            response = http.post(CHAT, json=BODY, headers=headers)
            assert (response.status_code, "API key" in response.json()["error"]["message"]) == (401, True)
            assert http.get("/v1/models", headers=headers).status_code == 401
        assert http.post(CHAT, json=BODY, headers={"Authorization": "Bearer secret"}).status_code == 200
        assert http.get("/health").status_code == 200
        with pytest.raises(ServerError, match="--api-key"):
            connect(ServerConfig(url), LoadConfig())
        assert connect(ServerConfig(url, "secret"), LoadConfig()).name == "gated"


def test_a_reader_who_leaves_frees_the_engine_after_the_cycle_it_is_in() -> None:
    engine = GatedEngine(free=False)
    with served(engine) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        with http.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            engine.cycles.release()
            next(response.iter_bytes())
            assert engine.begun.acquire(timeout=PATIENCE)
        _release_until_closed(engine)
        wait_until(lambda: health(http) == (0, 0))
        engine.free = True
        assert http.post(CHAT, json=BODY).json()["choices"][0]["message"]["content"] == "One two three."
    assert engine.states == 1  # what the conversation left is still good


def _release_until_closed(engine: GatedEngine) -> None:
    """Let cycles happen until the answer is given up: one may be under way, and the news takes a moment."""
    cycles = 0
    while not engine.closed.acquire(timeout=0.5):
        engine.cycles.release()
        cycles += 1
        assert cycles < 20


def test_a_visitor_who_leaves_before_a_whole_answer_frees_the_engine() -> None:
    engine = GatedEngine(free=False)
    with served(engine) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        # On a busy machine the visitor may be gone before the engine was asked at all, and comes again then.
        while not engine.begun.acquire(blocking=False):
            with pytest.raises(httpx.ReadTimeout):
                http.post(CHAT, json=BODY, timeout=httpx.Timeout(PATIENCE, read=0.5))
        _release_until_closed(engine)
        wait_until(lambda: health(http) == (0, 0))


def test_questions_wait_in_line_and_are_told_their_place() -> None:
    engine = GatedEngine(free=False)
    with served(engine, most_waiting=2) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        streams = [
            connect(ServerConfig(url), LoadConfig()).stream([{"role": "user", "content": "x" * at}]) for at in (1, 2, 3)
        ]
        assert isinstance(next(streams[0]), Started)
        assert engine.begun.acquire(timeout=PATIENCE)
        for place, stream in enumerate(streams[1:], start=1):
            assert isinstance(next(stream), Started)
            assert next(stream) == Reported(ahead=place)
            assert health(http) == (1, place)
        refused = http.post(CHAT, json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        streams[1].close()  # one gives up: the last moves up
        assert next(streams[2]) == Reported(ahead=1)
        engine.free = True
        engine.cycles.release(10)
        texts = []
        for stream in (streams[0], streams[2]):
            metrics = Metrics()
            for event in stream:
                metrics.add(event)
            texts.append(metrics.text)
        assert texts == ["One two three."] * 2
        wait_until(lambda: health(http) == (0, 0))
    assert [prompt for prompt, *_ in engine.asked] == [[1], [3]]
    assert engine.overlaps == 0


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), EagleChatError("this is broken")])
def test_an_engine_that_fails_is_told_of_and_works_again(fault: Exception) -> None:
    engine = GatedEngine()
    engine.fault = fault
    with served(engine) as url, httpx.Client(base_url=url, timeout=PATIENCE) as http:
        *_, last = events_of(http.post(CHAT, json={**BODY, "stream": True}))
        assert str(fault) in last["error"]["message"]
        assert http.post(CHAT, json=BODY).status_code in (400, 500)
        engine.fault = None
        assert http.post(CHAT, json=BODY).status_code == 200
    assert engine.states == 3  # nobody knows what the old states hold


def test_our_client_and_our_server_agree_on_every_figure() -> None:
    engine = GatedEngine()
    with served(engine) as url:
        metrics = Metrics()
        for event in connect(ServerConfig(url), LoadConfig()).stream([{"role": "user", "content": "hi"}]):
            metrics.add(event)
    assert metrics.text == "One two three."
    assert (metrics.tau, metrics.cycles, metrics.accept_by_depth) == (2.0, 3, [1.0, 0.0])
    assert metrics.token_ids == [100, 101, 101, 102, 102, 103, 103]
    assert (metrics.prompt_tokens, metrics.finish_reason) == (1, "stop")
