"""The page where things come at the wrong moment: keys pressed in a row, a menu open, somebody else in front."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core import recording
from tests.patience import PATIENCE
from tests.webui.conftest import Served
from tests.webui.served import Held
from tests.webui.test_page import BOX, answered, ask, plain_text, words

NOTICE = "text => document.querySelector('#ec-notice').innerText.includes(text)"


@pytest.fixture(scope="module")
def served(serve: Callable[..., Served]) -> Served:
    return serve(Held(seed=6))


def held(served: Served, page: Any, question: str) -> None:
    """Ask, and hold the answer still in its middle."""
    served.engine.gate.clear()
    ask(page, question)
    assert served.engine.held.wait(PATIENCE)
    page.wait_for_selector("#ec-stop:not([disabled])")


def test_stop_and_send_at_once_asks_the_next_question(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    held(served, page, "hello")
    page.click("#ec-stop")
    page.wait_for_function(NOTICE, arg="Stopping")
    threading.Timer(1.0, served.engine.gate.set).start()
    ask(page, "go on")
    answered(page, 2)
    page.wait_for_function("document.querySelector('#ec-notice').innerText === ''")
    assert "stopped by you" in page.locator(".ec-figures").first.inner_text()
    assert page.locator(".ec-question").all_inner_texts() == ["hello", "go on"]


def test_what_was_refused_during_an_answer_is_not_said_after_it(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    for refused in (lambda: ask(page, "another"), lambda: page.click("#ec-undo")):
        held(served, page, "hello")
        refused()
        page.wait_for_function(NOTICE, arg="found an answer still being made")
        served.engine.gate.set()
        answered(page, 1)
        page.wait_for_function("document.querySelector('#ec-notice').innerText === ''")
        page.click("#ec-clear")
        page.wait_for_selector(".ec-welcome")


def test_stop_in_the_queue_leaves_it_and_the_picture_comes_back(served: Served, new_page: Callable[..., Any]) -> None:
    first, second = (new_page(served.url) for _ in range(2))
    second.wait_for_selector("#ec-explorer .ee-title")
    held(served, first, "hello")
    ask(second, "hi")
    second.wait_for_function(NOTICE, arg="1 question is in front of yours")
    second.click("#ec-stop")
    second.wait_for_function(NOTICE, arg="Stopped before the answer began.")
    second.wait_for_selector("#ec-stop[disabled]")
    assert second.input_value(BOX) == "hi"
    assert second.locator(".ec-welcome").is_visible()
    second.wait_for_function("document.querySelector('#ec-explorer .ee').innerText.includes('reverses a string, and')")
    served.engine.gate.set()
    assert words(answered(first, 1)) == words(plain_text(served.engine, "hello"))


def test_escape_in_an_open_menu_only_closes_it(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    page.get_by_role("button", name="Save this run").click()
    held(served, page, "hello")
    page.click("#ec-bundled input")
    page.wait_for_selector("#ec-bundled [aria-expanded=true]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#ec-bundled [aria-expanded=false]")
    page.wait_for_timeout(300)  # a stop would have come by now
    assert "Stopping" not in page.inner_text("#ec-notice")
    served.engine.gate.set()
    assert words(answered(page, 1)) == words(plain_text(served.engine, "hello"))


def test_what_is_being_written_stays(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    page.fill(BOX, "half a question")
    page.click(".ec-examples button")
    answered(page, 1)
    assert page.input_value(BOX) == "half a question"
    page.click("#ec-clear")
    page.wait_for_selector(".ec-welcome")
    assert page.input_value(BOX) == "half a question"


def test_after_a_refusal_what_is_shown_is_what_is_saved(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    page.get_by_role("button", name="Save this run").click()
    page.click("#ec-bundled input")
    page.get_by_role("option").last.click()
    page.wait_for_function("document.querySelector('#ec-file-notice').innerText.includes('Opened')")
    shown = page.locator("#ec-explorer .ee-question").inner_text()
    page.click("#ec-settings button")
    page.get_by_label("Seed").fill("")
    ask(page, "hello")
    page.wait_for_function(NOTICE, arg="expected, found")
    with page.expect_download() as waiting:
        page.click("#ec-save-jsonl")
    (run, *_) = recording.read(Path(waiting.value.path()))
    assert run.question == shown
    assert page.locator("#ec-explorer .ee-question").inner_text() == shown
    assert page.faults == []


def test_every_press_saves(served: Served, new_page: Callable[..., Any]) -> None:
    """Of what did not change too."""
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    page.get_by_role("button", name="Save this run").click()
    for button in ("#ec-save-jsonl", "#ec-save-jsonl", "#ec-save-html", "#ec-save-html"):
        with page.expect_download():
            page.click(button)


def test_a_comparison_can_be_stopped_begun_again_and_taken_away(served: Served, new_page: Callable[..., Any]) -> None:
    page = new_page(served.url)
    page.wait_for_selector("#ec-explorer .ee-title")
    page.get_by_role("tab", name="Compare").first.click()
    page.click("#ec-compare")
    page.wait_for_function("document.querySelector('#ec-verdict').innerText.includes('same text: yes')")
    page.wait_for_selector(".ec-lanes ~ * .ee-title, .ee-title >> nth=1")
    with page.expect_download() as waiting:
        page.click("#ec-compare-jsonl")
    assert len(recording.read(Path(waiting.value.path()))) == 2
    served.engine.gate.clear()
    served.engine.held.clear()
    page.click("#ec-compare")
    assert served.engine.held.wait(PATIENCE)
    page.wait_for_function("document.querySelectorAll('.ee-title').length === 1")  # that of the chat
    page.keyboard.press("Escape")
    page.wait_for_function("document.body.innerText.includes('Stopping after this cycle')")
    served.engine.gate.set()
    page.wait_for_function("document.body.innerText.includes('Stopped before both answers were there.')")
    page.wait_for_function("document.querySelectorAll('.ee-title').length === 2")
    page.fill("#ec-compare-box textarea", "")
    page.click("#ec-compare")
    page.wait_for_function("document.body.innerText.includes('a question expected, found none')")
    assert page.locator(".ec-lane").count() == 2
    assert page.locator(".ec-lane").first.locator(".ec-answer").inner_text()
    assert page.faults == []
