"""`eagle-chat web`: the chat in a browser."""

from __future__ import annotations

import importlib.util
import time

from eagle_chat.cli.options import Given
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import say
from eagle_chat.core.errors import EagleChatError, UserError

INSTALL = "pip install 'eagle-chat[web]'"


def run(given: Given, host: str, port: int, auth: str | None, share: bool, heads: list[str]) -> int:
    """Serve until Ctrl-C; the exit code."""
    settings = resolve(given)
    login = parse_auth(auth)
    if share and login is None:
        raise UserError("a login expected for a public page, found none: give --auth USER:PASSWORD with --share")
    if importlib.util.find_spec("gradio") is None:
        raise EagleChatError(f"the browser chat needs gradio, found none: {INSTALL}")
    from eagle_chat.webui.launch import Place, open_page, service_for

    if settings.server.url is None:
        service = service_for(settings.load, tuple(heads))
    else:
        from eagle_chat.webui.server import service_for_server

        service = service_for_server(settings.server, settings.load, settings.tree, heads)
    place = Place(host, port, login, share)
    page, address = open_page(service, place, settings.tree, settings.sampling, settings.system, settings.load.base)
    say(f"the chat is at {address} (Ctrl-C ends it)")
    if host not in ("127.0.0.1", "localhost", "::1") and login is None:
        say("warning: everyone who reaches this machine can use the page: --auth USER:PASSWORD asks for a login")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        say("closing ...", quiet=True)
        return 0
    finally:
        page.close(verbose=False)


def parse_auth(text: str | None) -> tuple[str, str] | None:
    """User and password of USER:PASSWORD; the password may hold colons."""
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise UserError("a login such as --auth anna:secret expected, found no user or no password: give both")
    return user, password
