"""How answers end, and what is said where there is little to see: no token yet, no draft, an answer stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from eagle_chat.core.events import Committed, Drafted, DraftNode, Finished, Verified, VerifiedNode
from eagle_chat.core.recording import Run
from eagle_chat.webui.explorer import runs_data
from tests.webui.explorer.conftest import Shown
from tests.webui.explorer.runs import cut, made_up, plain, started

Show = Callable[..., Shown]
NEXT = "root of the next tree"


def ended(run: Run, reason: Any) -> Run:
    """The same, ended for another reason."""
    run.events[-1] = replace(run.events[-1], reason=reason)  # type: ignore[arg-type]
    return run


def signed_off() -> Run:
    """Its last cycle drafted three tokens, of which the second ends the answer: the third and the target's own go."""
    run = made_up(2)
    texts = [" root", " bye", "<|im_end|>", " more"]
    nodes = [DraftNode(i, i - 1, i, 50 + i, text, 0.9, -0.1 * i, 0, "kept", i) for i, text in enumerate(texts)]
    judged = [VerifiedNode(i, 0.9, "accepted") for i in range(4)]
    last = Committed(3, [51, 52], ["draft", "draft"], " bye", 4, 2, {"verify": 0.1}, [True, True], [" bye", ""])
    run.events[-1:] = [
        Drafted(3, nodes),
        Verified(3, judged, [0, 1, 2, 3], 99, " own"),
        last,
        Finished("stop", "", 3, 9),
    ]
    return run


@pytest.mark.parametrize(
    ("run", "said"),
    [(ended(made_up(2), "stop"), "The model ends its answer here."),
     (signed_off(), "here, with a sign that is not shown. 2 tokens more of the way through the tree are left out"),
     (cut(2), "Here the answer is as long as it may be."),
     (ended(made_up(2), "cancelled"), "Here it was stopped."),
     (ended(plain([1, 2, 3]), "length"), "Here the answer is as long as it may be."),
     (ended(plain([1]), "length"), "Here the answer is as long as it may be.")],
    ids=["stop", "sign", "cut", "stopped", "plain", "one token"],
)  # fmt: skip
def test_nothing_is_promised_after_the_last_cycle(show: Show, run: Run, said: str) -> None:
    shown = show(run)
    shown.press("End")
    assert said in shown.told
    assert "root of" not in shown.told
    shown.press("Home")
    promised = "root of the first tree" in shown.told
    assert promised == any(isinstance(event, Drafted) for event in run.events)


def test_in_the_middle_the_next_tree_is_named_where_there_will_be_one(show: Show) -> None:
    for run, drafted in ((made_up(3), True), (plain([1, 2, 3, 4]), False)):
        shown = show(run)
        shown.press("Home", "Shift+ArrowRight")
        while "Commit" not in shown.step:
            shown.press("ArrowRight")
        assert (NEXT in shown.told) == drafted


def test_what_the_end_left_out_is_marked(show: Show) -> None:
    shown = show(signed_off())
    shown.press("End")
    left = shown.page.locator(".ee-tree .ee-node.ee-left").evaluate_all("all => all.map(one => one.dataset.key)")
    assert sorted(left) == ["bonus", "n3"]
    shown.click("Verify")
    assert shown.page.locator(".ee-tree .ee-node.ee-left").count() == 0


def test_an_answer_without_a_first_token_keeps_the_picture_in_its_place(show: Show) -> None:
    silent = Run("Why?", [started(), Finished("cancelled", "", 0, 0)])
    shown = show(made_up(2), silent)
    before = shown.box(".ee-stage")
    shown.page.get_by_label("Answer", exact=True).select_option("1")
    assert shown.told == "This answer was stopped before its first token."
    assert not shown.page.locator(".ee-failure").is_visible()
    assert shown.box(".ee-stage")[0] == before[0]
    shown.press("ArrowRight", "End", "Home")
    shown.click("Play")
    shown.page.get_by_label("Answer", exact=True).select_option("0")
    assert shown.nodes() > 1
    assert shown.page.locator(".ee-more").is_visible()


def test_of_an_answer_that_was_stopped_only_the_beginning_is_compared(show: Show) -> None:
    shown = show(plain([1, 2, 3, 4]), ended(plain([1, 2]), "cancelled"))
    shown.tab("Compare")
    verdict = shown.page.locator(".ee-verdict").first
    assert "The same text, token for token (2 tokens until one was stopped)." in verdict.inner_text()
    assert shown.page.locator(".ee-pair mark").count() == 0
    parted = show(plain([1, 2, 3, 4]), ended(plain([1, 5]), "cancelled"))
    parted.tab("Compare")
    assert "part at token 2 of 2" in parted.page.locator(".ee-verdict.ee-no").inner_text()


def test_another_text_by_the_rejection_rule_is_no_fault(show: Show) -> None:
    runs = [plain([1, 2, 3]), plain([1, 5, 3])]
    for run in runs:
        rule = {"temperature": 1.0, "seed": 7, "verify": "rejection"}
        run.events[0] = replace(run.events[0], sampling=rule)  # type: ignore[call-arg]
    shown = show(*runs)
    shown.tab("Compare")
    assert (
        "≠ The texts part at token 2 of 3. The rejection rule keeps" in shown.page.locator(".ee-verdict").inner_text()
    )
    assert shown.page.locator(".ee-verdict.ee-no").count() == 0


def test_a_fixed_tree_that_is_smaller_says_why(show: Show) -> None:
    def fixed(run: Run) -> Run:
        run.events[0] = replace(run.events[0], policy="static")  # type: ignore[call-arg]
        return run

    whole, smaller = fixed(made_up(2, total=16)), made_up(1, depth=2, total=4)
    shown = show(whole)
    shown.click("Level 2")
    assert "however sure the head is." in shown.told
    last = [replace(event, cycle=3) for event in smaller.events[2:5]]  # type: ignore[call-arg]
    whole.events[-1:] = [*last, Finished("length", "", 3, 12)]  # type: ignore[list-item]
    shown = show(whole)
    shown.press("End")
    shown.click("Level 2")
    assert "this one is smaller, for not much more was to be written." in shown.told


def test_without_a_draft_there_is_nothing_to_weigh(show: Show) -> None:
    shown = show(plain([1, 2, 3]))
    shown.tab("Does it pay?")
    assert "so there is nothing to weigh" in shown.page.locator(".ee-panel").inner_text()
    shown = show(plain([1, 2, 3]), made_up(2))
    shown.tab("Does it pay?")
    assert "choose one with a draft above" in shown.page.locator(".ee-panel").inner_text()


@pytest.mark.parametrize("kept", [2000, 20])
def test_a_tree_of_very_many_nodes_is_folded(show: Show, kept: int) -> None:
    """Every child of the root, and of one of them: too many to draw is a box with their number."""
    nodes = [DraftNode(0, -1, 0, 1, " root", 1.0, 0.0, 0, "kept", 0)]
    nodes += [DraftNode(i, 0, 1, i, f" {i}", 0.01, -4.6, i - 1, "kept", i) for i in range(1, kept)]
    judged = [VerifiedNode(i, 0.5, "rejected" if i else "accepted") for i in range(kept)]
    run = made_up(1)
    run.events[2:5] = [
        Drafted(1, nodes),
        Verified(1, judged, [0], 99, " own"),
        Committed(1, [99], ["target"], " own", kept, 0, {"verify": 0.1}, [False], [" own"]),
    ]
    shown = show(run)
    for step in ("Rerank", "Verify"):
        shown.click(step)
        drawn = shown.page.locator(".ee-tree .ee-node")
        assert drawn.count() < 60
        folded = shown.page.locator(".ee-tree .ee-folded")
        assert folded.count() == (kept > 60)
        if kept > 60:
            assert "1979 more" in (folded.first.text_content() or "")
            assert "more nodes, folded" in shown.page.locator(".ee-tree-legend").inner_text()


@pytest.mark.parametrize(
    ("total", "said"), [(8, "A 1 means: this row sees"), (60, "A filled square is a 1: this row sees")]
)
def test_the_mask_says_what_it_shows(show: Show, total: int, said: str) -> None:
    shown = show(made_up(1, depth=5, top_k=6, total=total))
    shown.tab("Attention mask")
    assert said in shown.page.locator(".ee-panel").inner_text()


def test_a_way_that_jumps_is_refused(show: Show) -> None:
    data = runs_data([made_up(1)])
    data["runs"][0]["cycles"][1]["tree"]["path"] = [0, 7]
    shown = show(made_up(1))
    shown.mount(data)
    assert "a path from the root expected" in shown.page.locator(".ee-failure").last.inner_text()
