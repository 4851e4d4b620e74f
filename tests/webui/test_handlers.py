"""What the page's handlers send. The page itself is tested in a browser."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

gr = pytest.importorskip("gradio")

from eagle_chat.webui.handlers import Handlers  # noqa: E402
from eagle_chat.webui.session import Sessions  # noqa: E402
from tests.webui.served import Held, service_of  # noqa: E402

STREAMS = {name: stream for name, stream in vars(Handlers).items() if inspect.isgeneratorfunction(stream)}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_ends_with_what_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio repeats the last outputs when a stream has ended: what was pressed since must not be undone by them."""
    from eagle_chat.webui import limits

    monkeypatch.setattr(limits, "SESSIONS", 0)
    handlers = Handlers(service_of(Held()), Sessions(lambda key: None), "tiny", True)
    request: Any = type("Request", (), {"session_hash": "anna"})()
    given = len(inspect.signature(STREAMS[name]).parameters) - 3  # without self, request and values
    *_, refused, last = getattr(handlers, name)(request, *[None] * given)
    assert any("people at once" in str(one) for one in refused)
    assert last == (gr.skip(),) * len(refused)
