"""The page in a browser, on a tiny random model. One server and one browser for all; what can be tested without them is
tested elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core import recording
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.webui import limits
from tests.patience import PATIENCE
from tests.tiny import make_head, tokens_of
from tests.webui.conftest import Served
from tests.webui.served import HOSTILE, Held

BOX = "#ec-box textarea"


@pytest.fixture(scope="module")
def served(serve: Callable[..., Served]) -> Served:
    """Every tenth token is a hostile text; the others are words."""
    return serve(Held(dict.fromkeys(range(0, 97, 10), f"{HOSTILE}\n"), seed=6))


def plain_text(engine: Held, *messages: str) -> str:
    roles = ("user", "assistant")
    said: Any = [{"role": roles[place % 2], "content": text} for place, text in enumerate(messages)]
    events = engine.stream(said, sampling=SamplingConfig(max_new_tokens=24), tree=TreeConfig(policy="none"))
    return engine.chat.decode(tokens_of(events))


def words(text: str) -> list[str]:
    return text.split()


def ask(page: Any, question: str) -> None:
    page.fill(BOX, question)
    page.keyboard.press("Enter")


def answered(page: Any, count: int) -> str:
    """The text of answer number `count`, once it is finished."""
    page.wait_for_function(
        "count => { const turns = document.querySelectorAll('.ec-turn'); return turns.length === count && "
        "!turns[count - 1].classList.contains('ec-live') && turns[count - 1].children[2].textContent; }",
        arg=count,
    )
    text: str = page.locator(".ec-turn .ec-answer").nth(count - 1).inner_text()
    return text


def test_a_chat_with_retry_edit_undo_and_a_live_picture(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")  # a recording, before anything was asked
    served.engine.gate.clear()
    ask(page, HOSTILE)
    assert served.engine.held.wait(PATIENCE)
    page.wait_for_selector("#ec-stop:not([disabled])")
    served.engine.gate.set()
    first = plain_text(served.engine, HOSTILE)
    assert words(answered(page, 1)) == words(first)
    assert page.locator(".ec-question").inner_text() == HOSTILE
    assert HOSTILE in first, "the model was to say it too"
    assert page.locator("#ec-explorer .ee-answer, #ec-explorer .ee").first.inner_text()
    assert page.evaluate("window.hacked === undefined")
    assert page.locator(".ec-log script, .ec-log img, .ec-log b").count() == 0
    page.click("#ec-retry")
    page.wait_for_function("document.querySelector('#ec-notice').innerText.includes('temperature 0')")
    assert words(answered(page, 1)) == words(first)
    page.click("#ec-edit")
    page.wait_for_function("selector => document.querySelector(selector).value !== ''", arg=BOX)
    assert page.input_value(BOX) == HOSTILE
    ask(page, "hello")
    second = plain_text(served.engine, "hello")
    assert words(answered(page, 1)) == words(second)
    ask(page, "more")
    assert words(answered(page, 2)) == words(plain_text(served.engine, "hello", second, "more"))
    page.click("#ec-undo")
    page.wait_for_function("document.querySelectorAll('.ec-turn').length === 1")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save this run").click()
        page.click("#ec-save-jsonl")
    (run,) = recording.read(Path(waiting.value.path()))
    assert run.question == "hello"
    assert engine_text(served, run) == second
    assert page.asked == {re.sub("^https?://|/$", "", served.url)}, "no other host"
    assert page.faults == []


def engine_text(served: Served, run: recording.Run) -> str:
    return served.engine.chat.decode(tokens_of(run.events))


def test_what_is_refused_leaves_everything_as_it_was(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    page.click("#ec-retry")
    page.wait_for_function("document.querySelector('#ec-notice').innerText.includes('found none yet')")
    page.focus(BOX)
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#ec-notice').innerText.includes('write one')")
    assert page.locator(".ec-welcome").is_visible()
    ask(page, "hello")
    answered(page, 1)
    long = "x" * 9000
    ask(page, long)
    page.wait_for_function("document.querySelector('#ec-notice').innerText.includes('8,000')")
    page.wait_for_timeout(1500)  # what followed a refusal came after it
    assert "8,000" in page.inner_text("#ec-notice")
    assert page.input_value(BOX) == long
    assert page.locator(".ec-turn").count() == 1
    assert [page.inner_text(f"#ec-{name}") for name in ("send", "stop")] == ["Send", "Stop"]
    page.fill(BOX, "")
    page.click("#ec-clear")
    page.wait_for_selector(".ec-welcome")
    page.wait_for_function("document.querySelector('#ec-explorer .ee').innerText.includes('reverses a string, and')")
    with page.expect_download() as waiting:  # the picture that is there can be taken away
        page.get_by_role("button", name="Save this run").click()
        page.click("#ec-save-jsonl")
    assert "reverses a string, and" in str(recording.read(Path(waiting.value.path()))[0].question)
    assert page.faults == []


def test_what_is_pressed_right_after_an_answer_stays(served: Served, new_page: Callable[..., Any]) -> None:
    """When a stream ends, Gradio sends its last picture again, some time after it was seen."""
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    for button in ("clear", "undo", "edit"):
        ask(page, "hello")
        answered(page, 1)
        page.click(f"#ec-{button}")
        page.wait_for_selector(".ec-welcome")
        page.wait_for_timeout(1000)
        assert page.locator(".ec-turn").count() == 0, button
        assert page.inner_text("#ec-notice") == ""
        assert page.input_value(BOX) == ("hello" if button == "edit" else "")


def test_stop_by_escape_keeps_the_part_and_the_chat_goes_on(served: Served, new_page: Callable[..., Any]) -> None:
    """By keyboard alone."""
    page = new_page(served.url)
    page.wait_for_selector(BOX)
    page.focus(BOX)
    served.engine.gate.clear()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    assert served.engine.held.wait(PATIENCE)
    page.wait_for_selector("#ec-stop:not([disabled])")
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelector('#ec-notice').innerText.includes('Stopping')")
    served.engine.gate.set()
    part = answered(page, 1)
    page.wait_for_function("document.querySelector('#ec-notice').innerText === ''")  # "Stopping" has an end
    whole = plain_text(served.engine, "hello")
    assert whole.startswith(part.strip()[:10])
    assert len(part) < len(whole)
    page.focus(BOX)
    page.keyboard.type("go on")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "ec-send"
    page.keyboard.press("Enter")
    assert answered(page, 2)


def test_two_people_at_once_and_the_queue_is_seen(served: Served, new_page: Callable[..., Any]) -> None:
    pages = [new_page(served.url) for _ in range(2)]
    served.engine.gate.clear()
    for page, question in zip(pages, ("first", "second"), strict=True):
        page.wait_for_selector(BOX)
        ask(page, question)
        assert served.engine.held.wait(PATIENCE)
    pages[1].wait_for_function("document.querySelector('#ec-notice').innerText.includes('1 question is in front')")
    served.engine.gate.set()
    for page, question in zip(pages, ("first", "second"), strict=True):
        assert words(answered(page, 1)) == words(plain_text(served.engine, question))


def test_a_full_house_says_so_and_has_room_again(
    serve: Callable[..., Served], new_page: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue refuses a question, which stays where it was written; a full page refuses a person."""
    monkeypatch.setattr(limits, "WAITING", 1)
    monkeypatch.setattr(limits, "SESSIONS", 2)
    served = serve(Held(seed=8))
    first, second = (new_page(served.url) for _ in range(2))
    for page in (first, second):
        page.wait_for_function("document.body.innerText.includes('· ready')")
    served.engine.gate.clear()
    ask(first, "first")
    assert served.engine.held.wait(PATIENCE)
    ask(second, "second")
    second.wait_for_function("document.querySelector('#ec-notice').innerText.includes('queue expected, found it full')")
    second.wait_for_function("selector => document.querySelector(selector).value === 'second'", arg=BOX)
    third = new_page(served.url)
    third.wait_for_function("document.body.innerText.includes('at most 2 people at once')")
    served.engine.gate.set()
    assert words(answered(first, 1)) == words(plain_text(served.engine, "first"))
    second.focus(BOX)
    second.keyboard.press("Enter")
    assert words(answered(second, 1)) == words(plain_text(served.engine, "second"))
    second.context.close()
    third.wait_for_function("document.body.innerText.includes('· ready')")
    assert first.faults == second.faults == third.faults == []


def test_another_head_gives_the_same_text(serve: Callable[..., Served], new_page: Callable[..., Any]) -> None:
    engine = Held(seed=9)

    def change(loaded: Held, name: str) -> Engine:
        return Engine(loaded.target, loaded.chat, make_head("eagle", loaded.target, seed=10), name)

    served = serve(engine, change=change, heads=("another",))
    page = new_page(served.url)
    text = plain_text(engine, "hello")
    names = []
    for choice in (None, "another"):
        if choice is not None:
            page.click("#ec-clear")
            page.wait_for_selector(".ec-welcome")
            page.click("#ec-settings button")
            page.click("#ec-head input")
            page.get_by_role("option", name=choice).click()
        ask(page, "hello")
        assert words(answered(page, 1)) == words(text)
        names.append(page.locator("#ec-explorer .ee-about").inner_text())
    assert "tiny-head" in names[0]
    assert "another" in names[1]
    assert page.faults == []


def test_a_conversation_is_not_lost_without_a_question(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    asked: list[str] = []

    def keep(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.on("dialog", keep)
    page.wait_for_selector(BOX)
    page.focus(BOX)
    page.reload()
    assert asked == []  # there was nothing to lose
    page.wait_for_selector(BOX)
    ask(page, "hello")
    answered(page, 1)
    page.reload()
    assert asked == ["beforeunload"]


def test_compare_lossless_uploads_and_dark(served: Served, new_page: Callable[..., Any], tmp_path: Path) -> None:
    page = new_page(served.url, color_scheme="dark")
    page.wait_for_selector("#ec-explorer .ee-title")
    page.wait_for_selector("#ec-explorer .ee[data-theme=dark]")
    page.get_by_role("button", name="Save this run").click()
    hostile = tmp_path / "bad.jsonl"
    hostile.write_text('{"type": "started", "x": "<img src=x onerror=alert(1)>"}', encoding="utf-8")
    page.set_input_files("#ec-upload input[type=file]", str(hostile))
    page.wait_for_function("document.querySelector('#ec-file-notice').innerText.includes('line 1')")
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_selector("#ec-explorer .ee[data-theme=light]")
    page.get_by_role("tab", name="Compare").first.click()
    page.click("#ec-compare")
    page.wait_for_function("document.querySelector('#ec-verdict').innerText.includes('same text: yes')")
    page.get_by_role("tab", name="Is it lossless?").click()
    page.click("#ec-draw")
    page.wait_for_selector("#ec-law .ec-law")
    page.keyboard.press("Escape")
    page.wait_for_selector("#ec-draw:not([disabled])")
    assert page.asked == {re.sub("^https?://|/$", "", served.url)}
    assert page.faults == []


def test_a_login_is_asked_for(serve: Callable[..., Served], new_page: Callable[..., Any]) -> None:
    served = serve(Held(seed=7), auth=("anna", "secret"))
    page = new_page(served.url)
    page.wait_for_selector("input[type=password]")
    assert page.locator(BOX).count() == 0
    page.locator("input").first.fill("anna")
    page.fill("input[type=password]", "secret")
    page.keyboard.press("Enter")
    page.wait_for_selector(BOX)
