"""Rules for people who hear the page, use a keyboard, or need contrast. Each rule is checked on every panel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.webui.explorer.runs import recorded

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
    assert labels[1].startswith("“python”, level 1, drafted, q 0.90, value 0.90, rank 1")
