"""The options of `bench` and `verify`. What these need of torch they import when they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

BUILTIN = "builtin"
BENCH_TOKENS = 128
"""Longest answer of a benchmark where nothing else is said: long enough for a steady pace, short enough to wait for."""
VERIFY_TOKENS = 64
VERIFY_QUESTIONS = 8
"""One of each category of the built-in set."""
VERIFY_TEMPERATURE = 1.0


@dataclass(frozen=True)
class BenchOptions:
    """What `bench` was asked for, lists still as text; None: not given."""

    questions: str
    limit: int | None
    policies: str | None
    total_tokens: str | None
    temperature: str | None
    max_new_tokens: int | None
    json_file: Path | None
    plot_file: Path | None
    answers_file: Path | None
    alpha: bool
    calibration: bool
    context: str | None
    drafts: tuple[str, ...] = ()
    peers: bool = False
    concurrency: str | None = None
    plain_engine: str | None = None


@dataclass(frozen=True)
class VerifyOptions:
    """What `verify` was asked for; None: not given."""

    questions: str
    limit: int
    policies: str | None
    temperature: float | None
    max_new_tokens: int | None
    json_file: Path | None


Questions = Annotated[
    str, typer.Option(metavar="FILE|builtin", help="Questions: question_id, category, turns; a JSON object a line.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")]
Tokens = Annotated[int | None, typer.Option(help=f"Longest answer, in tokens. [default: {BENCH_TOKENS}]")]


def bench(
    ctx: typer.Context,
    questions: Questions = BUILTIN,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Ask N questions, spread over the categories.")] = None,
    policies: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Compare these: plain,chain,static,dynamic. [default: all of them]"),
    ] = None,
    total_tokens: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Nodes of the dynamic trees to compare; -1: by measurement."),
    ] = None,
    temperature: Annotated[
        str | None, typer.Option(metavar="T,T", help="Temperatures to compare at; 0 is greedy. [default: 0.0]")
    ] = None,
    max_new_tokens: Tokens = None,
    json_file: JsonFile = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw speed-up and time split (matplotlib).")
    ] = None,
    answers_file: Annotated[
        Path | None,
        typer.Option("--answers", metavar="FILE.jsonl", help="Write the answers for EAGLE's scripts, a file a run."),
    ] = None,
    alpha: Annotated[
        bool, typer.Option("--alpha", help="Measure n-alpha in chain mode (only that, without --policies).")
    ] = False,
    calibration: Annotated[
        bool,
        typer.Option("--calibration", help="Measure confidence against acceptance (only that, without --policies)."),
    ] = False,
    context: Annotated[
        str | None, typer.Option(metavar="L,L", help="Ask prompts of these lengths instead, in tokens.")
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Draft head: hub id, folder, or none. Repeat it to compare several heads."),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Ask other engines too: transformers, vLLM, llama.cpp, as far as set up."),
    ] = False,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N,N", help="With --engine URL: so many ask that server at once.")
    ] = None,
    plain_engine: Annotated[
        str | None, typer.Option(metavar="URL", help="The same model without drafts, to hold that server against.")
    ] = None,
) -> None:
    """Measure speed, and where it comes from: tau, c, speed-up against plain decoding."""
    from eagle_chat.cli.bench import run

    asked = BenchOptions(
        questions,
        limit,
        policies,
        total_tokens,
        temperature,
        max_new_tokens,
        json_file,
        plot_file,
        answers_file,
        alpha,
        calibration,
        context,
        tuple(draft or ()),
        peers,
        concurrency,
        plain_engine,
    )
    raise typer.Exit(run(ctx.obj, asked))


def verify(
    ctx: typer.Context,
    questions: Questions = BUILTIN,
    limit: Annotated[int, typer.Option(metavar="N", help="Ask N questions, spread over the categories.")] = (
        VERIFY_QUESTIONS
    ),
    policies: Annotated[
        str | None, typer.Option(metavar="A,B", help="Check these: chain,static,dynamic. [default: all of them]")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help=f"For the checks of sampling; 0 leaves them out. [default: {VERIFY_TEMPERATURE}]"),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help=f"Longest answer, in tokens. [default: {VERIFY_TOKENS}]")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check on this machine that drafts do not change the text: equal, a numerical tie, or a fault (exit code 1)."""
    from eagle_chat.cli.verify import run

    raise typer.Exit(run(ctx.obj, VerifyOptions(questions, limit, policies, temperature, max_new_tokens, json_file)))
