"""The named endpoints, by the library's own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eagle_chat.core import recording
from eagle_chat.core.config import SamplingConfig, TreeConfig
from tests.patience import PATIENCE
from tests.tiny import tokens_of
from tests.webui.conftest import Served
from tests.webui.served import Held

PLAIN = TreeConfig(policy="none")


@pytest.fixture(scope="module")
def served(serve: Callable[..., Served]) -> Served:
    return serve(Held(seed=5))


@pytest.fixture
def client(served: Served) -> Any:
    gradio_client = pytest.importorskip("gradio_client")
    return gradio_client.Client(served.url, verbose=False)


def plain(engine: Held, *messages: str, **sampling: Any) -> list[int]:
    roles = ("user", "assistant")
    said: Any = [{"role": roles[place % 2], "content": text} for place, text in enumerate(messages)]
    config = SamplingConfig(**{"max_new_tokens": 24, **sampling})
    return tokens_of(engine.stream(said, sampling=config, tree=PLAIN))


def test_a_client_has_a_conversation(served: Served, client: Any) -> None:
    job = client.submit("hello", api_name="/chat")
    first = job.result(timeout=PATIENCE)
    assert first["done"] is True
    assert first["token_ids"] == plain(served.engine, "hello")
    assert first["text"] == "".join(f"t{token} " for token in first["token_ids"])
    assert all(first["text"].startswith(part["text"]) for part in job.outputs())
    second = client.predict("and", {"temperature": 0.8, "seed": 3}, api_name="/chat")
    right = plain(served.engine, "hello", first["text"], "and", temperature=0.8, seed=3)
    assert second["token_ids"] == right
    runs = recording.parse(client.predict(api_name="/recording"))
    assert [run.question for run in runs] == ["hello", "and"]
    assert client.predict(api_name="/undo") == "and"
    assert client.predict(api_name="/clear") == "cleared"
    assert client.predict("hello", api_name="/chat")["token_ids"] == first["token_ids"]


def test_comparison_status_and_errors(client: Any) -> None:
    compared = client.predict("hello", api_name="/compare")
    assert compared["same_text"] is True
    assert compared["left"]["tau"] == 1.0
    assert client.predict(api_name="/status")["phase"] == "ready"
    for arguments, words in (
        (("",), "a question expected"),
        (("x" * 9000,), "at most 8,000 characters"),
        (("hi", {"speed": 2}), "found speed"),
        (("hi", {"depth": 99}), "a depth from 1 to 12"),
    ):
        with pytest.raises(Exception, match=words):
            client.predict(*arguments, api_name="/chat")


def test_two_clients_at_once_and_stopping(served: Served, client: Any) -> None:
    import gradio_client

    other = gradio_client.Client(served.url, verbose=False)
    served.engine.gate.clear()
    jobs = [client.submit("first", api_name="/chat")]
    assert served.engine.held.wait(PATIENCE)
    jobs.append(other.submit("second", api_name="/chat"))
    client.predict(api_name="/stop")
    served.engine.gate.set()
    stopped, whole = (job.result(timeout=PATIENCE) for job in jobs)
    right = plain(served.engine, "first")
    assert stopped["finish_reason"] == "cancelled"
    assert stopped["token_ids"] == right[: len(stopped["token_ids"])]
    assert whole["token_ids"] == plain(served.engine, "second")
