"""Events of the engine -> the objects of OpenAI's protocol, whole or in chunks."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from eagle_chat.core.events import Committed, Event, Finished
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving.requests import ChatRequest

REASONS = {"stop": "stop", "length": "length", "context": "length", "cancelled": "stop", "error": "stop"}


def error_object(message: str, status: int, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def sse(value: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(value)}\n\n"


class Reply:
    """One answer in the making."""

    def __init__(self, request: ChatRequest, seed: int) -> None:
        self._request, self._seed = request, seed
        self.metrics = Metrics()
        self._about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}

    def usage(self) -> dict[str, Any]:
        """Tokens of prompt and answer, and what became of the drafts."""
        metrics = self.metrics
        made, prompt = len(metrics.token_ids), metrics.prompt_tokens
        counts = metrics.counts_by_depth
        accepted, drafted = sum(accepted for _, accepted in counts), metrics.drafted_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": metrics.started.reused_tokens if metrics.started else 0},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
            "speculative": {
                "cycles": metrics.cycles,
                "draft_tokens": drafted,
                "accepted_tokens": accepted,
                "judged_by_position": [judged for judged, _ in counts],
                "accepted_by_position": [accepted for _, accepted in counts],
                "tau": metrics.tau,
                "tokens_per_second": metrics.tokens_per_second,
                "seed": self._seed,
            },
        }

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": self.metrics.text},
            "logprobs": None,
            "finish_reason": REASONS[self.metrics.finish_reason or "stop"],
        }
        if self._request.return_token_ids:
            choice["token_ids"] = list(self.metrics.token_ids)
        return {**self._about, "object": "chat.completion", "choices": [choice], "usage": self.usage()}

    def opening(self) -> str:
        """The first chunk: who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def add(self, event: Event) -> str:
        """Take an event; the chunks it makes, often none."""
        self.metrics.add(event)
        if isinstance(event, Committed) and (event.text or self._request.return_token_ids):
            return self._chunk({"content": event.text}, event.token_ids)
        if isinstance(event, Finished):
            return self._ending(event)
        return ""

    def _ending(self, event: Finished) -> str:
        if event.reason == "error":
            return sse(error_object(event.message or "the engine failed", 500, "server_error"))
        last = self._chunk({"content": event.text} if event.text else {}, [], REASONS[event.reason])
        if self._request.stream_options.include_usage:
            last += sse({**self._about, "object": "chat.completion.chunk", "choices": [], "usage": self.usage()})
        return last

    def _chunk(self, delta: dict[str, Any], token_ids: list[int] | None = None, reason: str | None = None) -> str:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self._request.return_token_ids and token_ids:
            choice["token_ids"] = token_ids
        value = {**self._about, "object": "chat.completion.chunk", "choices": [choice]}
        if self._request.stream_options.continuous_usage_stats and self.metrics.started:
            value["usage"] = self.usage()
        return sse(value)
