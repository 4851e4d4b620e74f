"""The page with a server in the engine's place: a fake one, which replays or misbehaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eagle_chat.core import recording
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving.client import ServerError
from eagle_chat.serving.config import ServerConfig
from eagle_chat.webui.chatting import Picture, answer
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.server import service_for_server
from eagle_chat.webui.server_html import INTRODUCTION, server_html
from eagle_chat.webui.service import EngineService
from eagle_chat.webui.session import Session
from tests.patience import PATIENCE
from tests.serving.fake_server import ANSWER, FakeServer, Response, as_json, recorded

BOX = "#ec-box textarea"
STALLING = Response(ANSWER[:1], stalls=True)
BUSY = as_json({"error": {"message": "slow down"}}, 429, **{"Retry-After": "7"})


def service_of(server: FakeServer) -> EngineService:
    service = service_for_server(ServerConfig(server.url), LoadConfig(), TreeConfig())
    service.start()
    return service


def ask(service: EngineService, session: Session, question: str = "hi", **controls: Any) -> list[Picture]:
    session.take(question)
    return list(answer(service, session, Controls(**controls)))


def test_recorded_vllm_traffic_becomes_text_and_figures() -> None:
    server, value = recorded("vllm")
    with server:
        service, session = service_of(server), Session("anna")
        for one in value["answers"]:
            last = ask(service, session, one["question"], max_new_tokens=24, system="be kind")[-1]
            assert last.metrics is not None
            html = server_html(last.metrics)
            assert "This server drafts chains of 3: no tree to show" in html
            for judged, accepted in last.metrics.counts_by_depth:
                assert f"<td>{judged}</td><td>{accepted}</td><td>{accepted / judged:.2f}</td>" in html
            assert f"<dd>{last.metrics.tau:.2f}</dd>" in html
    first, second = (body["messages"] for body in server.asked)
    assert [message["role"] for message in first] == ["system", "user"]
    # The second question comes with the first answer.
    assert second[2] == {"role": "assistant", "content": session.conversation.turns[0].answer}
    assert len(session.runs()) == 2


def test_sampling_goes_to_the_server() -> None:
    with FakeServer(Response(ANSWER), owner="vllm") as server:
        ask(service_of(server), Session("anna"), temperature=0.7, seed=9, top_p=0.5, sample_top_k=4, min_p=0.1)
    (body,) = server.asked
    names = ("temperature", "seed", "top_p", "top_k", "min_p")
    assert [body[name] for name in names] == [0.7, 9, 0.5, 4, 0.1]


@pytest.mark.parametrize(
    ("response", "part", "words"),
    [
        (Response(ANSWER[:1], breaks=True), "Hel", "ended the answer in the middle"),
        (Response([*ANSWER[:2], b"data: {nonsense\n\n"]), "Hello", "not OpenAI's protocol"),
        (Response([b": ahead 1\n\n"], breaks=True), "", "ended the answer in the middle"),
        (BUSY, "", "ask again in 7 s"),
    ],
)
def test_a_fault_is_told_the_part_kept_and_the_next_turn_works(response: Response, part: str, words: str) -> None:
    with FakeServer(response, Response(ANSWER)) as server:
        service, session = service_of(server), Session("anna")
        last = ask(service, session)[-1]
        assert [turn.answer for turn in session.conversation.turns] == ([part] if part else [])
        shown = last.transcript["turns"][-1][2] if part else last.notice
        assert words in shown.replace("&#x27;", "'")
        assert last.question == (None if part else "hi")  # goes back into the input
        assert ask(service, session)[-1].text == "Hello"


def test_stop_is_heard_while_the_server_is_silent() -> None:
    with FakeServer(STALLING, Response(ANSWER)) as server:
        service, session = service_of(server), Session("anna")
        session.take("hi")
        for picture in answer(service, session, Controls()):
            if picture.text == "Hel":
                session.stop()
        assert server.left.wait(PATIENCE)
        (turn,) = session.conversation.turns
        assert (turn.answer, turn.finish_reason) == ("Hel", "cancelled")
        assert ask(service, session)[-1].text == "Hello"


def test_faults_are_found_before_there_is_a_page() -> None:
    with pytest.raises(ServerError, match="a server expected at"):
        service_for_server(ServerConfig("http://127.0.0.1:9"), LoadConfig(), TreeConfig())
    with FakeServer(Response(ANSWER)) as server:
        with pytest.raises(UserError, match="found 'other': give --base with one of model"):
            service_for_server(ServerConfig(server.url), LoadConfig(base="other"), TreeConfig())
        for tree, heads in ((TreeConfig(depth=3), ()), (TreeConfig(), ("x",))):
            with pytest.raises(UserError, match="drafts as it was started"):
                service_for_server(ServerConfig(server.url), LoadConfig(), tree, heads)


def test_a_server_without_counts_says_nothing_of_drafts() -> None:
    assert server_html(Metrics()) == INTRODUCTION
    with FakeServer(Response(ANSWER), owner="<b>me</b>") as server:
        last = ask(service_of(server), Session("anna"))[-1]
    html = server_html(last.metrics)
    assert "This server tells nothing about drafts." in html
    assert "<table" not in html
    assert "&lt;b&gt;me&lt;/b&gt;" in html


@pytest.fixture
def serve_page() -> Iterator[Callable[[FakeServer], str]]:
    pytest.importorskip("gradio")
    from eagle_chat.webui.launch import Place, open_page

    pages: list[Any] = []

    def start(server: FakeServer) -> str:
        service = service_for_server(ServerConfig(server.url), LoadConfig(), TreeConfig())
        page, url = open_page(service, Place(), TreeConfig(), SamplingConfig(max_new_tokens=24), base=server.url)
        pages.append(page)
        return url

    yield start
    for page in pages:
        page.close(verbose=False)


def test_programs_ask_through_the_page(serve_page: Callable[[FakeServer], str]) -> None:
    gradio_client = pytest.importorskip("gradio_client")
    server, value = recorded("vllm")
    with server:
        client = gradio_client.Client(serve_page(server), verbose=False)
        first = client.predict(value["answers"][0]["question"], {"temperature": 0.0}, api_name="/chat")
        assert (first["usage"]["completion_tokens"], first["done"]) == (24, True)
        assert first["tau"] > 1.0
        assert len(first["accept_by_depth"]) == 3
        (run,) = recording.parse(client.predict(api_name="/recording"))
        assert run.question == value["answers"][0]["question"]
        assert "vllm at http" in client.predict(api_name="/status")["text"]
        with pytest.raises(Exception, match="found depth"):
            client.predict("hi", {"depth": 2}, api_name="/chat")
        with pytest.raises(ValueError, match="compare"):
            client.predict("hi", api_name="/compare")
        server.answers = [BUSY]
        with pytest.raises(Exception, match="ask again in 7 s"):
            client.predict("hi", api_name="/chat")


def test_the_page_in_a_browser(serve_page: Callable[[FakeServer], str], new_page: Callable[..., Any]) -> None:
    server, value = recorded("vllm")
    server.answers += [STALLING, Response(ANSWER)]
    with server:
        url = serve_page(server)
        page = new_page(url)
        page.wait_for_function("document.querySelector('.ec-status')?.innerText.includes('vllm at')")
        assert page.get_by_role("tab").all_inner_texts() == ["Chat"]
        assert page.locator("#ec-mode, #ec-policy, #ec-explorer").count() == 0
        assert "It drafts as it was started" in page.locator("#ec-server").inner_text()
        page.get_by_role("button", name="Settings").click()
        page.fill("#ec-system textarea", "be kind")
        for number, one in enumerate(value["answers"], start=1):
            ask_on(page, one["question"])
            finished(page, number, "τ")
        told = page.locator("#ec-server").inner_text()
        assert "This server drafts chains of 3: no tree to show" in told
        assert re.search(r"place\s+judged\s+accepted\s+share", told)
        # A server that is silent in the middle can be stopped; the part is kept, and what the next question builds on.
        ask_on(page, "stall")
        page.wait_for_function("[...document.querySelectorAll('.ec-answer')].pop().innerText.includes('Hel')")
        page.keyboard.press("Escape")
        finished(page, 3, "stopped by you")
        assert server.left.wait(PATIENCE)
        ask_on(page, "and now")
        finished(page, 4, "2 tokens")
        said = [message["content"] for message in server.asked[3]["messages"]]
        assert (said[0], said[-3:]) == ("be kind", ["stall", "Hel", "and now"])
        assert page.asked == {re.sub("^https?://|/$", "", url)}, "no other host"
        assert page.faults == []


def ask_on(page: Any, question: str) -> None:
    page.fill(BOX, question)
    page.keyboard.press("Enter")


def finished(page: Any, count: int, words: str) -> None:
    """Wait for answer number `count`, whose figures have these words."""
    page.wait_for_function(
        "([count, words]) => { const all = document.querySelectorAll('.ec-turn:not(.ec-live) .ec-figures'); "
        "return all.length === count && all[count - 1].innerText.includes(words); }",
        arg=[count, words],
    )
