"""Pages of the explorer in a browser, with all that went wrong and all that they asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eagle_chat.core.recording import Run
from eagle_chat.webui.explorer import explorer_assets
from tests.patience import PATIENCE
from tests.webui.explorer import runs as made

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Shown:
    """A page that is open, with all that went wrong and all that it asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    @property
    def step(self) -> str:
        """Where the story stands."""
        return self.page.locator(".ee-step-title").inner_text()

    @property
    def told(self) -> str:
        """The paragraph beside the picture."""
        return self.page.locator(".ee-explain").inner_text()

    def nodes(self, look: str = "") -> int:
        """How many nodes are drawn (of that look)."""
        return self.page.locator(f".ee-tree [role=treeitem]{'.ee-' + look if look else ''}").count()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the first such element, in pixels of the window."""
        return self.page.locator(selector).first.evaluate(BOX)  # type: ignore[no-any-return]

    def rest(self) -> None:
        """Wait until nothing moves any more."""
        self.page.wait_for_function("() => document.getAnimations().every((one) => one.playState !== 'running')")

    def mount(self, data: dict[str, Any], **options: Any) -> None:
        """Put another explorer, `window.live`, into the page: below the head of a page that is not its own, in a column
        as wide as the web page's on a projector."""
        self.page.evaluate(COLUMN)
        self.page.evaluate(MOUNT, [data, options])

    def compute(self, expression: str) -> Any:
        """What an expression is within the program."""
        _, js = explorer_assets()
        return self.page.evaluate(js.replace("window.EagleExplorer = EagleExplorer", f"return {expression}"))


BOX = "one => { const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; }"
COLUMN = """() => {
  document.body.className = "";
  document.getElementById("explorer").style = "width: 716px; margin: 120px 0 0 auto";
}"""
MOUNT = "([data, options]) => { window.live = EagleExplorer.mount(document.getElementById('explorer'), data, options) }"


@pytest.fixture
def show(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Shown]]:
    """Opens the page of some runs from a file, with no network. Faults that nobody looked at fail the test."""
    opened: list[Shown] = []
    contexts = []

    def opening(*runs: Run, width: int = 1280, height: int = 720, **context: Any) -> Shown:
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, offline=True, **context))
        shown = Shown(contexts[-1].new_page())
        shown.page.set_default_timeout(PATIENCE * 1000)
        opened.append(shown)
        shown.page.goto(made.write(tmp_path, *runs))
        return shown

    yield opening
    for context in contexts:
        context.close()
    assert [fault for shown in opened for fault in shown.faults] == []
