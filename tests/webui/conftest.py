"""The page served from this process, and a browser to look at it. Without gradio, Playwright or Chromium the tests that
need them are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eagle_chat.core.config import SamplingConfig, TreeConfig
from tests.patience import PATIENCE
from tests.webui.served import Held, service_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


class Served:
    """A page at `url` on `engine`."""

    def __init__(self, engine: Held, url: str) -> None:
        self.engine, self.url = engine, url


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Served]]:
    """Serve a page with an engine; all are closed at the end of the module."""
    pytest.importorskip("gradio")
    from eagle_chat.webui.launch import Place, open_page

    pages: list[Any] = []

    def start(engine: Held, auth: tuple[str, str] | None = None, **options: Any) -> Served:
        service = service_of(engine, **options)
        service.start = lambda: None  # type: ignore[method-assign]  # it has been started
        sampling = SamplingConfig(max_new_tokens=24)
        page, url = open_page(service, Place(auth=auth), TreeConfig(), sampling, base="tiny")
        pages.append(page)
        return Served(engine, url)

    yield start
    for page in pages:
        page.close(verbose=False)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a worker: Playwright runs once in a thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).is_file():
        pytest.skip("Chromium is not installed (Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        # Root, as in a container, has no user namespace to put a sandbox into.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """A page as a person of their own sees it; `asked` holds the hosts that it asked for anything."""
    contexts: list[Any] = []

    def open_one(url: str, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": 1280, "height": 720}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.asked = set[str]()
        page.faults = list[str]()
        page.on("request", lambda request: page.asked.add(request.url.split("/")[2]))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
