"""A server without a model: it replays recorded traffic, or misbehaves as a test asks it to.

Plain sockets, because a web framework would not let it break off, stall or talk nonsense.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

RECORDED = Path(__file__).parent / "recorded"


@dataclass
class Response:
    """`pieces` of the body go out one by one, `delay` seconds apart. `breaks`: the connection is cut after them, where
    it should have gone on. `stalls`: nothing comes after them until the client leaves."""

    pieces: list[bytes] = field(default_factory=list)
    status: int = 200
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    breaks: bool = False
    stalls: bool = False


def as_json(value: Any, status: int = 200, **headers: str) -> Response:
    return Response([json.dumps(value).encode()], status, "application/json", headers)


def data(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def chunk(text: str = "", reason: str | None = None, **more: Any) -> bytes:
    """A chunk of an answer."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": reason}
    return data({"object": "chat.completion.chunk", "choices": [choice], **more})


DONE = b"data: [DONE]\n\n"
ANSWER = [chunk("Hel"), chunk("lo"), chunk(reason="stop"), DONE]


class FakeServer:
    """Runs in a thread while it is entered. `answers`: what each question gets in turn, the last one from then on.
    `pages`: of /metrics, likewise, or with `counts` each the one after so many questions; none: it has no such page.
    `asked`: the questions. `left`: set when a client goes while its answer stalls."""

    def __init__(
        self, *answers: Response, pages: list[str] | None = None, owner: str = "someone", counts: bool = False
    ) -> None:
        self.answers, self.pages, self.owner, self.counts = list(answers), pages or [], owner, counts
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.models = as_json({"object": "list", "data": [{"id": "model", "object": "model", "owned_by": owner}]})
        self.left = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            self.keys.append(fields.get("authorization", ""))
            await self._respond(self._response(head.split(" ")[1], body), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _response(self, path: str, body: bytes) -> Response:
        if path == "/v1/models":
            return self.models
        if path == "/metrics" and self.pages:
            return Response([self._page().encode()], kind="text/plain")
        if path == "/v1/chat/completions":
            self.asked.append(json.loads(body))
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return as_json({"detail": "Not Found"}, 404)

    def _page(self) -> str:
        if self.counts:  # however often a client looks
            return self.pages[min(len(self.asked), len(self.pages) - 1)]
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]

    async def _respond(self, response: Response, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": response.kind, "Connection": "close", **response.headers}
        # A length that is never reached tells a cut connection from a finished body.
        if response.breaks or response.stalls:
            headers["Content-Length"] = "1000000"
        lines = [f"HTTP/1.1 {response.status} Fine", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for piece in response.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(response.delay)
        if response.stalls:
            await reader.read()  # its end: the client has gone
            self.left.set()


def recorded(name: str) -> tuple[FakeServer, dict[str, Any]]:
    """A server that replays `recorded/NAME.json`, and what was recorded."""
    value = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    server = FakeServer(
        *(Response([line.encode() for line in answer["stream"]]) for answer in value["answers"]),
        pages=list(value["pages"]),
        owner=value["models"]["data"][0]["owned_by"],
        counts=True,
    )
    server.models = as_json(value["models"])
    return server, value
