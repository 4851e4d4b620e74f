"""A client of OpenAI's chat protocol that says what went wrong in one line."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import httpx

from eagle_chat.core.errors import EagleChatError
from eagle_chat.serving import sse
from eagle_chat.serving.counters import Counters, parse

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0
"""A server that has said nothing for so long, not even that others wait in front, is given up."""
ASIDE_SECONDS = 5.0
"""For what is asked beside an answer."""
COUNTED = ("cycles", "draft_tokens", "accepted_tokens", "judged_by_position", "accepted_by_position")
"""Fields of `Reported` that our own server tells in `usage`, under "speculative"."""
DONE = "[DONE]"
QUEUED = "ahead "
"""How our own server begins the comment that tells how many answers come first."""


class ServerError(EagleChatError):
    """The server refused, or could not be reached, or broke off. `status`: HTTP's, None without one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Model:
    """A model that a server has. `owner`: who it says made it; engines write their own name there."""

    id: str
    owner: str


@dataclass(frozen=True)
class Piece:
    """What one message of a stream says; None: nothing of it. `ahead`: answers that come before this one.
    `usage`: as the server counts."""

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    ahead: int | None = None


class Client:
    """Talks to one server; an async context manager. Every method raises ServerError and nothing else of its own."""

    def __init__(self, url: str, api_key: str | None = None, silence: float = SILENCE_SECONDS) -> None:
        self.url, self._silence = url, silence
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(silence, connect=min(CONNECT_SECONDS, silence))
        limits = httpx.Limits(max_connections=None)  # a benchmark decides itself how many
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def models(self) -> list[Model]:
        """The models that may be asked for."""
        async with self._explained():
            response = await self._http.get("/v1/models", timeout=CONNECT_SECONDS)
            _check(response)
            try:
                data = response.json()["data"]
                return [Model(str(item["id"]), str(item.get("owned_by", ""))) for item in data]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ServerError(
                    f"a list of models expected at {self.url}/v1/models, found something else: check --engine"
                ) from None

    async def counters(self) -> Counters | None:
        """What the server has counted of its drafting so far; None where it does not tell."""
        with suppress(httpx.HTTPError):
            response = await self._http.get("/metrics", timeout=ASIDE_SECONDS)
            if response.is_success:
                return parse(response.text)
        return None

    async def answer(self, request: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        """Stream the answer to a request of /v1/chat/completions. Closing the iterator ends the request."""
        begun = finished = False
        async with (
            self._explained(),
            self._http.stream("POST", "/v1/chat/completions", json={**request, "stream": True}) as response,
        ):
            if not response.is_success:
                await response.aread()
                _check(response)
            try:
                async for line in sse.read(response.aiter_bytes()):
                    if line.kind == "data" and line.text == DONE:
                        return
                    piece = _piece(line)
                    if piece is not None:
                        begun = True
                        finished = finished or piece.finish_reason is not None
                        yield piece
            except sse.MalformedStreamError as error:
                raise self._nonsense(str(error)) from None
        if not begun:
            raise self._nonsense("nothing of that kind")
        if not finished:
            raise _broken("without saying so")

    def _nonsense(self, found: str) -> ServerError:
        return ServerError(
            f"the stream of an answer expected from {self.url}, found {found}: this is not OpenAI's protocol"
        )

    @asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """httpx's exceptions as ours."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerError(
                f"a server expected at {self.url}, found none ({_reason(error)}): start it, or check --engine"
            ) from error
        except httpx.TimeoutException as error:
            raise ServerError(
                f"a word from {self.url} expected within {self._silence:.0f} s, found none: it is too busy, or stuck"
            ) from error
        except httpx.HTTPError as error:
            raise _broken(_reason(error)) from error


def _broken(how: str) -> ServerError:
    return ServerError(f"the server ended the answer in the middle ({how}): ask again when it is well")


def _reason(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _piece(line: sse.Line) -> Piece | None:
    if line.kind == "comment":
        number = line.text.removeprefix(QUEUED)
        return Piece(ahead=int(number)) if line.text.startswith(QUEUED) and number.isdecimal() else None
    try:
        value = json.loads(line.text)
        if value.get("error"):
            raise ServerError(f"the server could not finish the answer: {_message(value)}")
        usage = _usage(value.get("usage"))
        choices = value.get("choices") or []
        if not choices:
            return Piece(usage=usage) if usage else None
        delta = choices[0].get("delta") or {}
        ids = choices[0].get("token_ids")
        return Piece(
            text=_text(delta),
            token_ids=None if ids is None else tuple(int(token) for token in ids),
            finish_reason=choices[0].get("finish_reason"),
            usage=usage,
        )
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        raise sse.MalformedStreamError(repr(line.text[:60])) from None


def _usage(value: Any) -> dict[str, Any] | None:
    """Counts as a server tells them; ValueError where they are none."""
    if not value:
        return None
    for name in ("prompt_tokens", "completion_tokens"):
        if not isinstance(value.get(name, 0), int | None):
            raise ValueError(name)
    for name, count in (value.get("speculative") or {}).items():
        if name in COUNTED and not all(isinstance(one, int) for one in (count if isinstance(count, list) else [count])):
            raise ValueError(name)
    usage: dict[str, Any] = value
    return usage


def _text(delta: dict[str, Any]) -> str:
    """The visible text; a model's thoughts, where a server splits them off, are shown as it wrote them."""
    parts = (delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"))
    return "".join(part for part in parts if isinstance(part, str))


def _check(response: httpx.Response) -> None:
    """ServerError for a status that is none of success."""
    if not response.is_success:
        _refused(response)


def _refused(response: httpx.Response) -> NoReturn:
    status = response.status_code
    try:
        said = _message(response.json())
    except ValueError:
        said = " ".join(response.text.split())[:200]
    said = said or response.reason_phrase
    if status in (401, 403):
        message = f"an API key that the server accepts expected, found another or none ({said}): give --api-key"
    elif status == 404:
        message = f"the server has no such thing: {said}"
    elif status == 429:
        wait = response.headers.get("retry-after")
        message = f"the server is busy ({said}): ask again {f'in {wait} s' if wait else 'later'}"
    elif status >= 500:
        message = f"the server failed ({status}: {said}): ask again, or look at its log"
    else:
        message = f"the server refuses the question ({status}): {said}"
    raise ServerError(message, status)


def _message(value: Any) -> str:
    """The words of an error in any of the shapes servers use."""
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error).split())[:400]
