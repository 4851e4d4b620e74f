"""An answer in the making: who follows it, who has gone back, and where both stand at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eagle_chat.core.recording import Run
from eagle_chat.webui.explorer import runs_data
from tests.webui.explorer.runs import cut, cycles_of, made_up

if TYPE_CHECKING:
    from tests.webui.explorer.conftest import Shown

    Show = Callable[..., Shown]


def begin(show: Show, run: Run) -> tuple[Shown, list[dict[str, Any]]]:
    """A live explorer in the web page, told of nothing but the header; the cycles to push."""
    shown = show(made_up(1))
    shown.mount(runs_data([Run(run.question, run.events[:1])]), live=True)
    return shown, cycles_of(run)


def push(shown: Shown, cycles: list[dict[str, Any]]) -> None:
    shown.page.evaluate("all => all.forEach(one => window.live.push(one))", cycles)


def end(shown: Shown, *runs: Run) -> None:
    shown.page.evaluate("data => window.live.update(data)", runs_data(runs))


def test_who_went_back_stays_with_the_answer_when_older_ones_come_in_front(show: Show) -> None:
    run = made_up(5, seed=2, question="And then?")
    shown, cycles = begin(show, run)
    push(shown, cycles[:4])
    shown.page.get_by_label("Cycle", exact=True).fill("2")
    push(shown, cycles[4:])
    end(shown, made_up(3), run)
    assert shown.step == "Cycle 2 · Commit"
    assert shown.page.locator(".ee-question").inner_text() == "And then?"
    assert shown.page.get_by_label("Answer", exact=True).input_value() == "1"


def test_the_newest_is_offered_only_while_more_may_come(show: Show) -> None:
    run = made_up(4)
    shown, cycles = begin(show, run)
    push(shown, cycles)
    newest = shown.page.get_by_role("button", name="Follow the newest")
    assert newest.count() == 0  # it follows
    shown.page.get_by_label("Cycle", exact=True).fill("1")
    assert newest.count() == 1
    end(shown, run)
    assert newest.count() == 0
    assert shown.step == "Cycle 1 · Commit"
    shown.press("Home")
    assert newest.count() == 0


def test_at_the_end_there_is_a_tree_to_see(show: Show) -> None:
    """A budget that leaves one token makes a last tree of one node; it can still be gone to."""
    run = cut(3)
    shown, cycles = begin(show, run)
    push(shown, cycles)
    end(shown, made_up(2), run)
    assert shown.step == "Cycle 3 · Commit"
    assert shown.nodes() > 2
    slider = shown.page.get_by_label("Cycle", exact=True)
    assert slider.get_attribute("max") == "4"
    slider.fill("4")
    assert shown.step == "Cycle 4 · Commit"


def test_one_answer_alone_is_told_what_the_page_can_do(show: Show) -> None:
    shown = show(made_up(1))
    shown.tab("Compare")
    assert "lay a second recording beside this one" in shown.page.locator(".ee-panel").inner_text()
    shown.mount(runs_data([made_up(1)]), tab="compare")
    said = shown.page.locator(".ee-panel").text_content() or ""
    assert "The Compare tab of this page" in said
    assert "second recording" not in said


def test_the_web_page_chooses_which_answer_is_shown(show: Show) -> None:
    shown = show(made_up(1))
    shown.mount(runs_data([made_up(1), made_up(1, question="And then?")]))
    shown.page.evaluate("window.live.attempt(() => window.live.choose(1))")
    assert shown.page.locator(".ee-question").inner_text() == "And then?"
    assert shown.page.get_by_label("Answer", exact=True).input_value() == "1"
