"""Which engine answers: our own in this process, or a server that speaks OpenAI's protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from eagle_chat.core.errors import UserError

OtherEngine = Literal["vllm", "sglang"]
OTHER_ENGINES: tuple[str, ...] = get_args(OtherEngine)


NEEDED = ("anyio", "fastapi", "httpx", "prometheus_client", "uvicorn")


def check_installed() -> None:
    """UserError where the optional packages that servers and clients need are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            f"the packages {', '.join(NEEDED)} expected, found no {', '.join(missing)}: install them with pip install "
            "'eagle-chat[serve]'"
        )


@dataclass(frozen=True)
class ServerConfig:
    """`engine`: URL of a server to talk to, the name of another engine to start (`eagle-chat serve`), or None for our
    own in this process. `api_key`: what a server asks for; never shown."""

    engine: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.engine is not None and self.engine not in OTHER_ENGINES:
            parts = urlsplit(self.engine)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UserError(
                    f"a server's URL expected, found {self.engine!r}: give --engine such as http://127.0.0.1:8000 "
                    f"({' or '.join(OTHER_ENGINES)} for eagle-chat serve)"
                )
        # Header values that HTTP cannot carry would fail with a riddle at the first request.
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key):
            raise UserError("an API key of printable ASCII characters expected, found others: check --api-key")

    @property
    def url(self) -> str | None:
        """The server's root without a slash at its end, or None for our own engine. UserError for an engine's name."""
        if self.engine in OTHER_ENGINES:
            raise UserError(
                f"a server's URL expected, found {self.engine!r}: start it by eagle-chat serve --engine {self.engine}, "
                "then give --engine http://127.0.0.1:8000"
            )
        return None if self.engine is None else self.engine.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True)
class Wishes:
    """What a person said about the server. `acceptance`: by depth, as text. `executable`: of the engine."""

    host: str
    port: int
    name: str | None = None
    acceptance: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    machines: int = 1
    executable: Path | None = None
    more: tuple[str, ...] = ()
