"""Figures and words: the same as elsewhere in the program, and right for one as for many."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from eagle_chat.core.events import Committed, Drafted, DraftNode, Verified, VerifiedNode
from eagle_chat.core.recording import Run
from eagle_chat.webui.explorer import runs_data
from tests.webui.explorer.runs import cut, made_up, started

if TYPE_CHECKING:
    from tests.webui.explorer.conftest import Shown

    Show = Callable[..., Shown]


def test_two_decimals_are_those_of_the_chat(show: Show) -> None:
    shown = show(made_up(1))
    values = [1.625, 2.675, 1.005, 1.125, 1.375, 1.875, 3.0, 39 / 24, 0.995, -0.125, 7 / 3]
    assert shown.compute(f"{json.dumps(values)}.map(hundredths)") == [f"{value:.2f}" for value in values]


def test_a_tau_in_the_middle_is_written_alike_everywhere(show: Show) -> None:
    """13 tokens in 8 passes, 1.625."""
    events = [started(), Committed(0, [1], ["target"], "a", 0, 0, {"prefill": 0.1})]
    for cycle in range(1, 9):
        tokens = [2, 3] if cycle < 6 else [2]
        nodes = [
            DraftNode(0, -1, 0, 1, "a", 1.0, 0.0, 0, "kept", 0),
            DraftNode(1, 0, 1, 2, "b", 1.0, 0.0, 0, "kept", 1),
        ]
        taken = len(tokens) - 1
        judged = [VerifiedNode(0, 1.0, "accepted"), VerifiedNode(1, 0.5, "accepted" if taken else "rejected")]
        origins = ["draft"] * taken + ["target"]
        events += [
            Drafted(cycle, nodes),
            Verified(cycle, judged, [0, 1][: taken + 1], tokens[-1], "c"),
            Committed(cycle, tokens, origins, "bc", 2, taken, {"verify": 0.1}, [bool(taken)]),  # type: ignore[arg-type]
        ]
    shown = show(Run("Why?", events))
    shown.press("End")
    assert "τ = 1.62 tokens a pass" in shown.told
    shown.tab("Charts")
    assert "τ = 1.62." in shown.page.locator(".ee-chart").first.inner_text()
    shown.tab("Does it pay?")
    assert shown.page.locator(".ee-fact b").first.inner_text() == "1.62"


@pytest.mark.parametrize("costs", [{1: 0.03, 4: 0.04, 8: 0.09}, {8: 0.05, 60: 0.2}, {}])
def test_at_the_recorded_settings_the_what_if_is_what_was_measured(show: Show, costs: dict[int, float]) -> None:
    """Though the last tree was smaller, and passes were measured at another time."""
    shown = show(made_up(1))
    shown.mount(runs_data([cut(4)], costs=costs, plain={"verify": 0.025, "other": 0.005}), tab="pay")
    tau, _, even, speed = shown.page.locator(".ee-fact b").all_inner_texts()
    verdict = shown.page.locator(".ee-verdict")
    assert f"τ {tau} against a break-even of {even}: {speed}," in verdict.inner_text()
    shown.page.get_by_label("Nodes N").fill("4")
    assert speed not in verdict.inner_text()
    shown.page.get_by_label("Nodes N").fill("8")
    assert speed in verdict.inner_text()


def test_a_tree_of_one_node_is_told_in_the_singular(show: Show) -> None:
    shown = show(cut(1))
    shown.press("End")
    panel = shown.page.locator(".ee-panel").inner_text()
    assert "one batch of 1 row, and the target reads it in a single pass" in panel
    shown.page.locator(".ee-matrix").focus()
    note = shown.page.locator(".ee-note").inner_text()
    assert "sees the text and itself." in note
    _, top, edge, _ = shown.box(".ee-matrix-head")
    _, _, right, bottom = shown.box(".ee-matrix-head span:last-child")
    assert bottom - top < 24  # one line
    assert right <= edge


def test_one_is_one_token_and_one_node(show: Show) -> None:
    """A chain of one guess: every count on the page is one."""
    shown = show(made_up(1, depth=2, top_k=1, total=2))
    said = []
    for name in ("Level 1", "2", "Rerank", "Verify", "Commit"):
        shown.page.locator(".ee-steps").get_by_role("button").filter(has_text=name).first.click()
        said.append(shown.told)
    assert "its best continuation, 1 new node" in said[1]
    assert "1 most valuable stays and 1 is dropped" in said[2]
    for tab in ("Attention mask", "Charts", "Compare", "Does it pay?", "How to read this"):
        shown.tab(tab)
        said.append(shown.page.locator(".ee-panel").inner_text())
    text = " ".join(said)
    assert [word for word in ("tokens", "nodes", "rows", "cycles", "passes") if f" 1 {word}" in f" {text}"] == []
    assert "thickness" not in text


TURNING = "".join(map(chr, [0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x2069]))


def test_signs_that_turn_the_text_are_shown_as_signs(show: Show) -> None:
    """In every place where a text stands, and in every name."""
    nodes = [DraftNode(0, -1, 0, 1, TURNING, 1.0, 0.0, 0, "kept", 0)]
    nodes.append(DraftNode(1, 0, 1, 2, f"a{TURNING}", 0.5, -0.7, 0, "kept", 1))
    judged = [VerifiedNode(0, 1.0, "accepted", 3, TURNING), VerifiedNode(1, 0.1, "rejected")]
    events = [
        started(),
        Committed(0, [1], ["target"], TURNING, 0, 0, {"prefill": 0.1}, pieces=[TURNING]),
        Drafted(1, nodes),
        Verified(1, judged, [0], 3, TURNING),
        Committed(1, [3], ["target"], TURNING, 2, 0, {"verify": 0.1}, [False], [TURNING]),
    ]
    run = Run(TURNING, events)
    shown = show(run, run)
    page = shown.page
    for step in ("Level 1", "Rerank", "Verify", "Commit"):
        shown.click(step)
        for tab in ("Attention mask", "Charts", "Compare", "Does it pay?"):
            shown.tab(tab)
            for key in ("n0", "n1", "bonus"):
                node = page.locator(f"[data-key={key}]")
                if node.count():
                    node.focus()
                    found = page.evaluate("document.querySelector('#explorer').outerHTML")
                    assert not set(found) & set(TURNING), (step, tab, key)
    assert page.locator(".ee-tip dd b").first.inner_text() == "�" * len(TURNING)
