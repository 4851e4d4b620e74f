"""The engine behind a URL, against a server that misbehaves in every way that was thought of."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.events import Committed, Event, Finished, Reported, Started
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving import client
from eagle_chat.serving.client import ServerError
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.remote import RemoteEngine, connect
from eagle_chat.serving.telling import UNKNOWN_TOKEN
from tests.serving.fake_server import ANSWER, DONE, FakeServer, Response, as_json, chunk, data
from tests.serving.test_counters import page

QUESTION: Any = [{"role": "user", "content": "hi"}]


def engine_of(server: FakeServer, **more: Any) -> RemoteEngine:
    return connect(ServerConfig(server.url), LoadConfig(), **more)


def ask(engine: RemoteEngine, **sampling: Any) -> tuple[list[Event], Metrics]:
    events = list(engine.stream(QUESTION, sampling=SamplingConfig(**sampling)))
    metrics = Metrics()
    for event in events:
        metrics.add(event)
    return events, metrics


def reports(events: Sequence[Event]) -> list[Reported]:
    return [event for event in events if isinstance(event, Reported)]


def test_an_answer_becomes_events() -> None:
    with FakeServer(Response(ANSWER)) as server:
        events, metrics = ask(engine_of(server), temperature=0.5, seed=3, stop=("END",))
    assert isinstance(events[0], Started)
    assert [event.text for event in events if isinstance(event, Committed)] == ["Hel", "lo"]
    assert events[-1] == Finished("stop", "", 0, 2)
    assert (metrics.text, metrics.tau, metrics.token_ids) == ("Hello", None, [UNKNOWN_TOKEN] * 2)
    (body,) = server.asked
    assert (body["model"], body["messages"], body["stream"]) == ("model", QUESTION, True)
    assert (body["temperature"], body["seed"], body["stop"]) == (0.5, 3, ["END"])
    # A server that nobody knows gets OpenAI's fields alone.
    assert set(body) == {
        "model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop",
    }  # fmt: skip


def test_a_known_server_gets_every_field_and_an_unknown_one_what_was_asked_for() -> None:
    with FakeServer(Response(ANSWER), owner="vllm") as server:
        ask(engine_of(server))
        assert {name: server.asked[0][name] for name in ("top_k", "min_p", "return_token_ids")} == {
            "top_k": 0, "min_p": 0.0, "return_token_ids": True,
        }  # fmt: skip
    with FakeServer(Response(ANSWER)) as server:
        ask(engine_of(server), top_k=5)
        assert server.asked[0]["top_k"] == 5


def test_counters_of_the_server_give_tau_and_acceptance_of_this_answer() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 50}
    pieces = [chunk("a"), chunk(reason="length"), data({"choices": [], "usage": usage}), DONE]
    pages = [page(10, 20, 9, 6, 3, 100), page(29, 60, 24, 15, 9, 150)]
    with FakeServer(Response(pieces), pages=pages, owner="vllm") as server:
        events, metrics = ask(engine_of(server))
    last = reports(events)[-1]
    assert (last.cycles, last.draft_tokens, last.accepted_tokens, last.others) == (19, 40, 15, False)
    assert (last.judged_by_position, last.accepted_by_position) == ([19, 9], [9, 6])
    assert metrics.tau == pytest.approx(1 + 15 / 19)
    assert metrics.accept_by_depth == pytest.approx([9 / 19, 6 / 9])
    assert (metrics.prompt_tokens, len(metrics.token_ids), metrics.finish_reason) == (7, 50, "length")


def test_counts_that_hold_answers_to_others_say_so() -> None:
    pieces = [chunk("a"), chunk(reason="stop", usage={"prompt_tokens": 7, "completion_tokens": 1}), DONE]
    with FakeServer(Response(pieces), pages=[page(0, 0, 0, 0, 0, 0), page(9, 18, 5, 3, 2, 400)]) as server:
        events, _ = ask(engine_of(server))
    assert reports(events)[-1].others


def test_what_our_own_server_tells_in_usage_counts_before_any_page() -> None:
    told = {
        "cycles": 4,
        "draft_tokens": 28,
        "accepted_tokens": 6,
        "judged_by_position": [4, 3],
        "accepted_by_position": [4, 2],
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 11, "speculative": told}
    with FakeServer(Response([chunk("a"), chunk(reason="stop", usage=usage), DONE]), owner="eagle-chat") as server:
        _, metrics = ask(engine_of(server))
    assert (metrics.tau, metrics.accept_by_depth, metrics.cycles) == (2.5, [1.0, 2 / 3], 4)


def test_a_place_in_the_line_is_told() -> None:
    with FakeServer(Response([b": ahead 2\n\n", b": ahead 1\n\n", b": keep-alive\n\n", *ANSWER])) as server:
        events, metrics = ask(engine_of(server))
    assert [report.ahead for report in reports(events)] == [2, 1, 0]
    assert metrics.text == "Hello"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (Response(ANSWER[:1], breaks=True), "ended the answer in the middle"),
        (Response(ANSWER[:2]), "ended the answer in the middle"),
        (Response([*ANSWER[:2], b"data: {nonsense\n\n"]), "not OpenAI's protocol"),
        (Response([*ANSWER[:2], b"<html>oops</html>\n"]), "not OpenAI's protocol"),
        (Response([*ANSWER[:2], b"data: [1, 2]\n\n"]), "not OpenAI's protocol"),
        (Response([*ANSWER[:2], data({"choices": [], "usage": [1]})]), "not OpenAI's protocol"),
        (Response([*ANSWER[:2], chunk(usage={"completion_tokens": "many"})]), "not OpenAI's protocol"),
        (Response([*ANSWER[:2], chunk(usage={"speculative": {"cycles": [None]}})]), "not OpenAI's protocol"),
        (Response([*ANSWER[:2], data({"error": {"message": "out of memory"}})]), "out of memory"),
        (Response([*ANSWER[:2], chunk(reason="content_filter"), DONE]), "content_filter"),
    ],
)
def test_a_server_that_breaks_off_leaves_what_came_and_the_next_turn_works(response: Response, words: str) -> None:
    with FakeServer(response, Response(ANSWER)) as server:
        engine = engine_of(server)
        events, metrics = ask(engine)
        assert metrics.text in ("Hel", "Hello")
        assert isinstance(events[-1], Finished)
        assert (events[-1].reason, words in (events[-1].message or "")) == ("error", True), events[-1].message
        assert ask(engine)[1].text == "Hello"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (
            as_json({"error": {"message": "slow down"}}, 429, **{"Retry-After": "7"}),
            "busy (slow down): ask again in 7 s",
        ),
        (as_json({"error": {"message": "The model `x` does not exist.", "code": 404}}, 404), "does not exist"),
        (as_json({"object": "error", "message": "max_tokens is too large"}, 400), "max_tokens is too large"),
        (as_json({"detail": "wrong key"}, 401), "--api-key"),
        (Response([b"<h1>Bad gateway</h1>"], 502, "text/html"), "the server failed (502: <h1>Bad gateway</h1>)"),
        (Response([b"<html>a portal</html>"], 200, "text/html"), "not OpenAI's protocol"),
    ],
)
def test_a_refusal_is_one_clear_line_and_the_next_turn_works(response: Response, words: str) -> None:
    with FakeServer(response, Response(ANSWER)) as server:
        engine = engine_of(server)
        with pytest.raises(ServerError) as caught:
            ask(engine)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert ask(engine)[1].text == "Hello"


def test_a_server_that_is_away_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ServerError, match=f"a server expected at {url}, found none"):
        connect(ServerConfig(url), LoadConfig())
    with FakeServer(Response(ANSWER)) as server:
        engine = engine_of(server)
    with pytest.raises(ServerError, match="found none"):
        ask(engine)


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.Client.__init__, "__defaults__", (None, 0.3))
    with FakeServer(Response(ANSWER[:1], stalls=True)) as server:
        events, metrics = ask(engine_of(server))
    assert isinstance(events[-1], Finished)
    assert metrics.text == "Hel"
    assert "a word from" in (events[-1].message or "")


def test_a_wish_to_stop_is_heard_while_the_server_is_silent() -> None:
    with FakeServer(Response(ANSWER[:1], stalls=True)) as server:
        seen: list[Event] = []
        engine = engine_of(server, stopped=lambda: any(isinstance(event, Committed) for event in seen))
        for event in engine.stream(QUESTION):
            seen += [event]
        assert seen[-1] == Finished("cancelled", "", 0, 1)
        assert server.left.wait(10)


def test_closing_the_iterator_ends_the_request() -> None:
    with FakeServer(Response(ANSWER[:1], stalls=True)) as server:
        events = engine_of(server).stream(QUESTION)
        assert isinstance(next(events), Started)
        assert isinstance(next(events), Committed)
        events.close()
        assert server.left.wait(10)


def test_models_are_chosen_by_name_and_wrong_names_refused() -> None:
    with FakeServer(Response(ANSWER)) as server:
        assert connect(ServerConfig(server.url), LoadConfig(base="model")).name == "model"
        assert connect(ServerConfig(f"{server.url}/v1/", "secret"), LoadConfig()).name == "model"
        assert server.keys[-1] == "bearer secret"
        with pytest.raises(UserError, match="found 'other': give --base with one of model"):
            connect(ServerConfig(server.url), LoadConfig(base="other"))
        server.models = as_json({"data": []})
        with pytest.raises(EagleChatError, match="found none there"):
            engine_of(server)
        server.models = Response([b"<html>"], kind="text/html")
        with pytest.raises(ServerError, match="found something else"):
            engine_of(server)


def test_what_a_server_cannot_do_is_refused() -> None:
    with FakeServer(Response(ANSWER)) as server:
        engine = engine_of(server)
    with pytest.raises(UserError, match="drafts as it was started"):
        list(engine.stream(QUESTION, tree=TreeConfig("none")))
    with pytest.raises(UserError, match="drafts as it was started"):
        list(engine.stream(QUESTION, tree=TreeConfig(depth=3)))
    with pytest.raises(UserError, match="cannot go on"):
        list(engine.stream([1, 2, 3]))


@pytest.mark.parametrize("engine", ["localhost:8000", "ftp://x", "http://", "vllm2", ""])
def test_what_is_no_url_is_refused(engine: str) -> None:
    with pytest.raises(UserError, match="a server's URL expected"):
        ServerConfig(engine)
    assert "secret" not in repr(ServerConfig("http://x", "secret"))
    with pytest.raises(UserError, match="--api-key"):
        ServerConfig("http://x", "schlüssel\n")


def test_piece_counts_follow_the_server_where_it_counts() -> None:
    pieces = [
        chunk("ab", usage={"completion_tokens": 2}), chunk("c", usage={"completion_tokens": 5}),
        chunk(reason="stop", usage={"completion_tokens": 6}), DONE,
    ]  # fmt: skip
    with FakeServer(Response(pieces), owner="vllm") as server:
        events, metrics = ask(engine_of(server))
    assert [len(event.token_ids) for event in events if isinstance(event, Committed)] == [2, 3, 1]
    assert metrics.token_ids[0] == UNKNOWN_TOKEN
