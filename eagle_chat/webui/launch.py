"""Serve the page: the engine loads behind it, and nothing leaves the machine unless it was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported

from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.webui import limits
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.handlers import Handlers
from eagle_chat.webui.page import build
from eagle_chat.webui.parts import head, theme
from eagle_chat.webui.service import EngineService
from eagle_chat.webui.session import Sessions

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; frame-ancestors 'self'"
)
"""What a browser may load for the page: only what comes from here. Gradio needs inline programs and eval."""


@dataclass(frozen=True)
class Place:
    """Where and for whom the page is served. `auth`: (user, password) or None. `port` 0: a free one from 7860 on."""

    host: str = "127.0.0.1"
    port: int = 0
    auth: tuple[str, str] | None = None
    share: bool = False


def service_for(load: LoadConfig, heads: tuple[str, ...]) -> EngineService:
    """The service of the engine that `load` names. Torch is imported when it loads, behind the page."""

    def load_engine() -> Any:
        import eagle_chat

        return eagle_chat.load_engine(load)

    def change(engine: Any, name: str) -> Any:
        from eagle_chat.core.loading import with_head

        return with_head(engine, replace(load, draft=name), name)

    return EngineService(load_engine, change, heads)


def open_page(
    service: EngineService,
    place: Place,
    tree: TreeConfig,
    sampling: SamplingConfig,
    system: str | None = None,
    base: str = "the model",
) -> tuple[Any, str]:
    """Serve the page and begin to load; the Gradio app and its address. Returns at once."""
    sessions = Sessions(gone=service.forget)
    given = service.is_server or any(value is not None for value in (tree.depth, tree.top_k, tree.total_tokens))
    handlers = Handlers(service, sessions, base, given)
    page = build(service, handlers, Controls.of(tree, sampling, system))
    page.queue(default_concurrency_limit=None, max_size=4 * limits.WAITING)
    try:
        _app, local, shared = page.launch(
            server_name=place.host,
            server_port=place.port or None,
            auth=place.auth,
            share=place.share,
            prevent_thread_lock=True,
            quiet=True,
            inbrowser=False,
            footer_links=[],
            max_file_size=limits.UPLOAD,
            enable_monitoring=False,
            ssr_mode=False,
            strict_cors=True,
            app_kwargs={"middleware": [_policy_middleware()]},
            theme=theme(),
            head=head(),
        )
    except OSError as error:
        raise UserError(
            f"a free port expected on {place.host}, found none ({error}): give another --port or --host"
        ) from error
    service.start()
    return page, shared or local


def _policy_middleware() -> Any:
    from starlette.middleware import Middleware

    class ContentPolicy:
        """Adds the headers to every answer."""

        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def send_with_policy(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [
                        *message.get("headers", []),
                        (b"content-security-policy", POLICY.encode()),
                        (b"x-content-type-options", b"nosniff"),
                    ]
                await send(message)

            await self._app(scope, receive, send_with_policy)

    return Middleware(ContentPolicy)
