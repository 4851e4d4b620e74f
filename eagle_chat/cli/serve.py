"""`eagle-chat serve`: our own engine as a server, or another engine started with the right settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from eagle_chat.cli.options import Settings
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import say
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.serving.config import OTHER_ENGINES, Wishes, check_installed

HOST, PORT = "127.0.0.1", 8000


def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one this machine has.")] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = PORT,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the model is called. [default: as --base]")
    ] = None,
    most_waiting: Annotated[
        int, typer.Option(min=0, metavar="N", help="Our own engine: questions in the line before others are refused.")
    ] = 32,
    print_only: Annotated[
        bool, typer.Option("--print-only", help="Another engine: print the command, and run nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="vLLM: ask it first whether it can load target and head.")
    ] = True,
    acceptance: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Another engine: measured acceptance by depth, to choose the chain by."),
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Split each layer over N devices.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Spread the layers over N stages.")] = 1,
    machines: Annotated[
        int, typer.Option(min=1, metavar="N", help="Machines; with several, vLLM runs on a Ray cluster.")
    ] = 1,
    executable: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The engine's program: vllm, or sglang's python.")
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTION...]", help="Passed on to the other engine.")
    ] = None,
) -> None:
    """Serve an OpenAI-compatible API: our own engine for one user, or --engine vllm|sglang for many.

    --depth is the length of another engine's chain of drafts; without it, it follows from the measured acceptance.
    --api-key is what visitors must send.
    """
    settings = resolve(ctx.obj)
    wishes = Wishes(
        host, port, name, acceptance, tensor_parallel, pipeline_parallel, machines, executable, tuple(more or ())
    )
    engine = settings.server.engine
    if engine in OTHER_ENGINES:
        raise typer.Exit(_serve_other(engine, settings, wishes, print_only, check))
    if engine is not None:
        raise UserError(
            f"{' or '.join(OTHER_ENGINES)} expected for --engine of serve, found a URL: leave it out for our own engine"
        )
    if print_only or wishes != Wishes(host, port, name):
        raise UserError("options of another engine found, but none is named: add --engine vllm, or leave them out")
    raise typer.Exit(_serve_own(settings, wishes, most_waiting))


def _serve_other(engine: str, settings: Settings, wishes: Wishes, print_only: bool, check: bool) -> int:
    """Print the command, and become it unless only that was asked for."""
    from eagle_chat.serving import launch

    made, notes = launch.plan(engine, settings.load, settings.tree, wishes)
    program = None if print_only else launch.find(engine, wishes.executable)
    command = launch.COMMANDS[engine](made, *([launch.words_before_target(engine, program)] if program else []))
    for note in notes:
        say(f"note: {note}", quiet=True)
    key = settings.server.api_key
    if program is not None and engine == "vllm" and check:
        say("asking vLLM whether it can load target and head ...", quiet=True)
        launch.check_vllm(made, program)
    sys.stdout.write(launch.shown(command, engine, key is not None) + "\n")
    if program is not None:
        launch.start(command, key, engine)
    return 0


def _serve_own(settings: Settings, wishes: Wishes, most_waiting: int) -> int:
    check_installed()
    import socket

    import uvicorn

    from eagle_chat.cli.measuring import load
    from eagle_chat.serving.server import Serving, create_app

    name = wishes.name or settings.load.base
    try:  # before the model is loaded: that takes longer than finding the port taken
        listener = socket.create_server((wishes.host, wishes.port))
    except OSError as error:
        raise EagleChatError(
            f"a free address expected at {wishes.host}:{wishes.port}, found none ({error.strerror}): give another "
            "--host or --port"
        ) from error
    with listener:
        engine = load(settings)
        serving = Serving(name, settings.sampling, settings.tree, settings.server.api_key, most_waiting)
        host, port = listener.getsockname()[:2]
        say(f"{name} at http://{host}:{port}/v1, one answer at a time; Ctrl-C ends it")
        if host not in ("127.0.0.1", "::1") and settings.server.api_key is None:
            say("note: anybody who reaches this machine can use it: --api-key keeps strangers out", quiet=True)
        config = uvicorn.Config(
            create_app(engine, serving), log_config=LOGGING, access_log=False, timeout_graceful_shutdown=5
        )
        uvicorn.Server(config).run(sockets=[listener])
    return 0


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(message)s", "datefmt": "%H:%M:%S"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain", "stream": "ext://sys.stderr"}},
    "loggers": {
        "uvicorn.error": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
        "eagle_chat.serving": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}
"""Our own log line an answer; of uvicorn only what went wrong."""
