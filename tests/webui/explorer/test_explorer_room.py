"""What fits where: on a projector, on a phone, on the whole screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from eagle_chat.webui.explorer import runs_data
from tests.webui.explorer.conftest import BOX
from tests.webui.explorer.runs import made_up, plain, recorded

if TYPE_CHECKING:
    from tests.webui.explorer.conftest import Shown

    Show = Callable[..., Shown]

LONG = "Why is the sky blue, and not green? " * 140


def test_beside_a_chat_picture_and_story_are_on_one_screen(show: Show) -> None:
    """On a projector, in the web page's column below its head: at no step does anybody need to scroll, and the picture
    stays where it is."""
    shown = show(made_up(1))
    shown.mount(runs_data([*recorded("code"), made_up(1, question=LONG)]))
    stages = set()
    for answer in ("0", "2"):
        shown.page.get_by_label("Answer", exact=True).select_option(answer)
        for step in shown.page.locator(".ee-steps button").all():
            step.click()
            assert shown.page.evaluate("window.scrollY") == 0
            for name in (".ee-stage", ".ee-transport", ".ee-step-title", ".ee-explain", ".ee-tree-legend"):
                _, top, _, bottom = shown.box(name)
                assert 120 <= top < bottom <= 720, (name, step)
            _, top, _, bottom = shown.box(".ee-stage")
            assert bottom - top >= 200
            swatches = shown.page.locator(".ee-tree-legend li").evaluate_all("all => all.map(one => one.offsetTop)")
            assert len(set(swatches)) == 1  # the legend is one row
            stages.add((answer, round(top), round(bottom)))
    assert len(stages) == 2


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_a_long_question_takes_two_lines(show: Show, width: int, height: int) -> None:
    shown = show(made_up(2, question=LONG), width=width, height=height)
    question = shown.page.locator(".ee-question")
    _, top, _, bottom = shown.box(".ee-question")
    assert bottom - top <= 44
    shown.page.wait_for_function("() => document.querySelector('.ee-question').tabIndex === 0")
    question.focus()
    shown.press("PageDown", "PageDown")
    shown.page.wait_for_function("() => document.querySelector('.ee-question').scrollTop > 20")
    short = show(made_up(2), width=width, height=height)
    short.page.wait_for_timeout(200)
    assert short.page.locator(".ee-question").get_attribute("tabindex") is None


ON_TOP = """one => {
  const box = one.getBoundingClientRect();
  return one.contains(document.elementFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2));
}"""


@pytest.mark.parametrize("total", [8, 60])
def test_no_node_lies_below_the_zoom_buttons(show: Show, total: int) -> None:
    """Neither when all of it fits nor when it is large and scrolled: what is drawn ends beside them."""
    shown = show(made_up(1))
    shown.mount(runs_data([made_up(1, depth=5, top_k=6, total=total)]))
    for step in ("Rerank", "Verify"):
        shown.click(step)
        for _ in range(2):
            _, _, buttons, _ = shown.box(".ee-zoom")
            pane, top, _, bottom = shown.box(".ee-pane")
            assert buttons <= pane
            assert shown.box(".ee-zoom")[1] >= top
            assert shown.box(".ee-zoom")[3] <= bottom
            shown.click("Fit the whole tree")
    for name in ("Zoom out", "Fit the whole tree", "Zoom in", "Full screen"):
        assert shown.page.get_by_role("button", name=name).evaluate(ON_TOP), name


FILLED = """() => {
  const stage = document.querySelector(".ee-stage").getBoundingClientRect();
  return innerHeight - 30 <= stage.bottom && stage.bottom <= innerHeight && stage.height >= 0.68 * innerHeight;
}"""
FITTED = """() => {
  const [stage, tree, pane] = [".ee-stage", ".ee-tree", ".ee-pane"].map((name) => document.querySelector(name));
  const share = tree.getBoundingClientRect().height / stage.getBoundingClientRect().height;
  return share >= 0.9 && pane.scrollHeight <= pane.clientHeight + 1;
}"""


@pytest.mark.parametrize("column", [False, True])
def test_the_whole_screen_is_for_the_tree(show: Show, column: bool) -> None:
    shown = show(made_up(1, depth=5, top_k=6, total=60), height=915)
    if column:
        shown.mount(runs_data([made_up(1, depth=5, top_k=6, total=60)]))
    shown.click("Verify")
    shown.click("Full screen")
    shown.page.wait_for_function("() => document.fullscreenElement !== null")
    shown.page.wait_for_function(FILLED)
    shown.page.locator("[data-key=n0]").focus()
    shown.press("0")
    shown.page.wait_for_function(FITTED)


def test_on_a_phone_the_lanes_fit_and_can_be_read(show: Show) -> None:
    shown = show(made_up(4), plain([1] * 10), width=390, height=844)
    shown.tab("Compare")
    left, _, right, _ = shown.box(".ee-lanes")
    blocks = shown.page.locator(".ee-block").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert 0 <= left < right <= 390
    assert max(blocks) <= 390
    drawn = shown.page.locator(".ee-lanes").evaluate("svg => svg.clientWidth / svg.viewBox.baseVal.width")
    assert drawn > 0.95  # letters are as large as they are on a wide screen


def test_the_marks_of_an_axis_are_whole(show: Show) -> None:
    shown = show(*recorded("code"))
    shown.tab("Charts")
    for chart in shown.page.locator(".ee-chart").all():
        left, _, right, _ = chart.locator("svg").evaluate(BOX)
        for text in chart.locator("svg text").all():
            start, _, end, _ = text.evaluate(BOX)
            assert left - 1 <= start <= end <= right + 1, text.text_content()
