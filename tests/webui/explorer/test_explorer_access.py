"""Rules for people who hear the page, use a keyboard, or need contrast. Each rule is checked on every panel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.webui.explorer.runs import made_up, recorded

if TYPE_CHECKING:
    from tests.webui.explorer.conftest import Shown

    Show = Callable[..., Shown]

RULES = Path(__file__).with_name("rules.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_rules_hold_on_every_panel(show: Show, scheme: str) -> None:
    shown = show(*recorded("sampled"), color_scheme=scheme)
    faults = {}
    for step, tab in [
        ("2", "Attention mask"), ("Rerank", "Charts"), ("Verify", "Compare"), ("Commit", "Does it pay?"),
        ("Level 1", "How to read this"),
    ]:  # fmt: skip
        shown.page.locator(".ee-steps").get_by_role("button", name=step, exact=step != "2").first.click()
        shown.tab(tab)
        faults[tab] = shown.page.evaluate(RULES)
    assert {tab: found for tab, found in faults.items() if found} == {}


def test_the_rules_can_fail(show: Show) -> None:
    shown = show(*recorded("demo"))
    shown.page.evaluate(
        "() => { const b = document.createElement('button'); b.style.width = '9px'; b.id = 'explorer';"
        "document.querySelector('.ee-body').append(b); document.querySelector('.ee-explain').style.color = '#ccc' }"
    )
    faults = " ".join(shown.page.evaluate(RULES))
    assert "no name: <button" in faults
    assert "twice: id explorer" in faults
    assert "contrast 1." in faults


def test_what_happens_is_announced_when_a_person_moves(show: Show) -> None:
    shown = show(*recorded("demo"))
    assert shown.page.locator(".ee-explain").get_attribute("aria-live") == "polite"
    labels = shown.page.locator(".ee-tree [role=treeitem]").evaluate_all("nodes => nodes.map(n => n.ariaLabel)")
    assert labels[0].endswith("root: the newest token of the text")
    assert labels[1].startswith("“python”, level 1, drafted, q 0.93, value 0.93, rank 1")


def test_every_stop_of_the_tab_key_has_a_name(show: Show) -> None:
    """Once around the page. Chromium also stops at parts of an SVG that listen for focus."""
    shown = show(*recorded("demo"))
    shown.click("Verify")
    stops: list[list[str]] = []
    here = """() => { const one = document.activeElement;
      return [one.tagName, one.getAttribute("aria-label") || one.labels?.[0]?.textContent || one.textContent || ""] }"""
    shown.page.evaluate("document.activeElement.blur()")
    for _ in range(60):
        shown.press("Tab")
        stops.append(shown.page.evaluate(here))
        if stops[-1][0] == "BODY":
            break
    nodes = [name for tag, name in stops if tag == "g"]
    assert len(nodes) == 1
    assert nodes[0].endswith("root: the newest token of the text")
    assert [tag for tag, name in stops[:-1] if not name.strip()] == []


def test_p_is_told_from_the_pass_of_the_target_on(show: Show) -> None:
    shown = show(*recorded("demo"))
    node = shown.page.locator("[data-key=n1]")
    for step, known in [("Level 1", False), ("Rerank", False), ("Verify", True), ("Commit", True)]:
        shown.click(step)
        node.focus()
        assert (", p 0.96" in (node.get_attribute("aria-label") or "")) is known
        tip = shown.page.locator(".ee-tip").inner_text()
        assert ("0.96 the target’s probability" in tip) is known
        assert ("known after the target’s pass" in tip) is not known


def test_the_ring_around_the_mask_is_whole(show: Show) -> None:
    """It is the border of what is in view: nothing cuts that off."""
    shown = show(made_up(1, depth=5, top_k=6, total=60))
    shown.tab("Attention mask")
    colour = "getComputedStyle(document.querySelector('.ee-mask')).borderColor"
    assert shown.page.evaluate(colour) == "rgba(0, 0, 0, 0)"
    shown.page.get_by_role("tab", name="Attention mask").focus()
    shown.press("Tab")
    assert shown.page.evaluate("document.activeElement.className") == "ee-matrix"
    assert shown.page.evaluate(colour) == "rgb(26, 79, 208)"
    (left, top, right, bottom), panel = shown.box(".ee-mask"), shown.box(".ee-panel")
    assert panel[0] <= left < right <= panel[2]
    assert panel[1] <= top < bottom <= panel[3]
