"""The program `eagle-chat`: its commands, and how it ends.

Nothing heavy is imported here: a command imports what it needs when it runs, so that `--help` answers
at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eagle_chat.cli.answer import INTERRUPTED
from eagle_chat.cli.bench_options import bench, verify
from eagle_chat.cli.options import shared_options
from eagle_chat.cli.serve import serve
from eagle_chat.cli.text import one_line, prepare_streams
from eagle_chat.cli.train import app as train_app
from eagle_chat.core.errors import EagleChatError

DEBUG = "EAGLE_CHAT_DEBUG"

app = typer.Typer(
    name="eagle-chat",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the time of --help
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


app.add_typer(train_app, name="train")  # what it needs of torch it imports when it runs
app.command()(shared_options(bench))
app.command()(shared_options(verify))
app.command()(shared_options(serve))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("eagle-chat")
        except PackageNotFoundError:
            found = "(run from its source folder, not installed)"
        sys.stdout.write(f"eagle-chat {found}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
@shared_options
def chat(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record the chat in FILE, for eagle-chat replay.")
    ] = None,
) -> None:
    """Chat with a language model accelerated by an EAGLE draft head.

    Without a command: the chat. Every option may also come from a TOML file (--config) or a variable such as
    EAGLE_CHAT_TEMPERATURE. The answer goes to stdout, everything else to stderr.
    """
    if ctx.invoked_subcommand is None:
        from eagle_chat.cli.chat import run

        raise typer.Exit(run(ctx.obj, record))
    if record is not None:
        raise typer.BadParameter("it belongs to the chat; generate --jsonl gives a recording", param_hint="--record")


@app.command()
@shared_options
def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="The question; text piped in is appended to it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with text and figures.")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="One event a line: a recording of the run.")] = False,
) -> None:
    """Answer one question and exit."""
    from eagle_chat.cli.generate import run

    raise typer.Exit(run(ctx.obj, prompt, as_json, as_jsonl))


@app.command()
def replay(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A recording.", show_default=False)] = None,
    demo: Annotated[bool, typer.Option("--demo", help="The recording that comes with the program.")] = False,
    speed: Annotated[
        float | None, typer.Option(metavar="X", help="1 is as it was, 2 twice as fast, 0 without waiting.")
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="Pause in every cycle and explain it.")] = False,
    seek: Annotated[int, typer.Option(metavar="N", help="Begin with cycle N of the first answer.")] = 0,
    html: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write it as one page for a browser instead, which needs no network."),
    ] = None,
    beside: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A second recording for the page, to compare with.")
    ] = None,
) -> None:
    """Play a recording in the terminal, or write it as a page; no model is needed.

    Keys: space pauses, right and left go a cycle on and back, + and - change the speed, s walks through the steps of
    a cycle, q leaves.
    """
    from eagle_chat.cli.replay import run

    raise typer.Exit(run(file, demo, speed, step, seek, html, beside))


@app.command()
@shared_options
def web(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one from 7860 on.", show_default=False)
    ] = 0,
    auth: Annotated[str | None, typer.Option(metavar="USER:PASSWORD", help="Ask for this login.")] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Also a public link through gradio.live; needs --auth.")
    ] = False,
    head: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further draft head to choose from. May be repeated.")
    ] = None,
) -> None:
    """Chat in the browser, with the draft tree of every cycle beside the answer."""
    from eagle_chat.cli.web import run

    raise typer.Exit(run(ctx.obj, host, port, auth, share, head or []))


@app.command()
def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[pull] [WORDS]", help="Only those with these words; pull NAME fetches one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list with all that is known.")] = False,
) -> None:
    """List the models known by name, their draft heads, and what of it is on this machine."""
    from eagle_chat.cli.models import run

    raise typer.Exit(run(words or [], as_json))


@app.command()
@shared_options
def doctor(
    ctx: typer.Context,
    run_it: Annotated[
        bool, typer.Option("--run/--no-run", help="Also load the pair and answer a few questions.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every finding.")] = False,
) -> None:
    """Find out what is wrong with a target, its head or this machine: cause and remedy of each finding.

    Ends with 0 where nothing is wrong, 3 where the head does not fit the target, 1 or 2 for another error.
    """
    from eagle_chat.cli.doctor import run

    raise typer.Exit(run(ctx.obj, run_it, as_json))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code.

    0 done, 1 failed, 2 usage, 3 the head does not fit the target, 130 interrupted.
    """
    prepare_streams()
    try:
        code = _run(argv)
    finally:
        _drop_unwritten_output()
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        result = app(args=argv, prog_name="eagle-chat", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(error, f"{error.format_message()} (--help lists what there is)", error.exit_code)
    except EagleChatError as error:
        return _fail(error, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # Nobody reads the answer any more; typer makes of this a SystemExit.
        return EagleChatError.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort: a line, not a traceback
        hint = f"this was not expected, {DEBUG}=1 shows where it happened"
        return _fail(error, f"{type(error).__name__}: {error} ({hint})", EagleChatError.exit_code)
    return result if isinstance(result, int) else 0


def _fail(error: Exception, message: str, code: int) -> int:
    """Report on stderr, in one line."""
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"error: {one_line(message)}\n")
        sys.stderr.flush()
    return code


def _drop_unwritten_output() -> None:
    """Python flushes stdout once more at exit, and would complain about a reader that has gone."""
    try:
        sys.stdout.flush()
    except OSError:  # reported where it was written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
