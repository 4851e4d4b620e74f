"""`eagle-chat bench --concurrency`: a server under load."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Group
from rich.text import Text

from eagle_chat.bench import concurrency
from eagle_chat.bench.card import make_table, show, shown
from eagle_chat.bench.files import check_writable
from eagle_chat.bench.plan import parse_integers
from eagle_chat.bench.prompts import read_questions, select
from eagle_chat.bench.report import as_json
from eagle_chat.cli.answer import INTERRUPTED, StopRequest
from eagle_chat.cli.bench_options import BENCH_TOKENS, BenchOptions
from eagle_chat.cli.measuring import answer_length, save
from eagle_chat.cli.options import Settings
from eagle_chat.cli.text import needs_ascii
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import Report, reporting
from eagle_chat.serving.client import Client
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.remote import choose_model

MOST = 1024
"""Askers at once; more would measure this program."""


def run(settings: Settings, asked: BenchOptions) -> int:
    """Measure; the exit code."""
    if settings.server.url is None:
        raise UserError("a server's URL expected for --concurrency, found none: give --engine URL")
    _refuse_others(asked)
    levels = parse_integers(asked.concurrency or "", "--concurrency")
    if not all(1 <= level <= MOST for level in levels):
        raise UserError(f"numbers from 1 to {MOST} expected for --concurrency, found {asked.concurrency!r}: change it")
    if asked.json_file is not None:
        check_writable(asked.json_file, "--json")
    questions = select(read_questions(asked.questions), asked.limit)
    sampling = answer_length(asked.max_new_tokens, settings.sampling, BENCH_TOKENS)
    urls = [settings.server.url]
    if asked.plain_engine is not None:
        plain = ServerConfig(asked.plain_engine).url
        assert plain is not None
        urls.append(plain)
    stop = StopRequest()

    async def measured(report: Report) -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            servers = []
            for url in urls:
                client = await stack.enter_async_context(Client(url, settings.server.api_key))
                model = choose_model(url, await client.models(), settings.load.base)
                servers.append(concurrency.Server(client, model))
            rows, partial = await concurrency.measure(
                servers, questions, levels, sampling, settings.system, report, lambda: stop.asked
            )
            about = {
                "questions": {"source": asked.questions, "asked": len(questions)},
                "max_new_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "partial": partial,
            }
            return concurrency.document(servers, rows, **about)

    with stop, reporting() as report:
        value = asyncio.run(measured(report))
    show(card(value, needs_ascii(sys.stdout)))
    save(asked.json_file, as_json(value))
    return INTERRUPTED if value["partial"] else 0


def _refuse_others(asked: BenchOptions) -> None:
    others = {
        "--policies": asked.policies, "--total-tokens": asked.total_tokens, "--temperature": asked.temperature,
        "--plot": asked.plot_file, "--answers": asked.answers_file, "--alpha": asked.alpha,
        "--calibration": asked.calibration, "--context": asked.context,
    }  # fmt: skip
    given = [option for option, value in others.items() if value]
    if given:
        raise UserError(f"options for a server expected with --concurrency, found {', '.join(given)}: leave them out")


def card(value: dict[str, Any], ascii_only: bool) -> Group:
    """The document for people."""
    asked = value["questions"]["asked"]
    parts = [shown(f"{asked} questions, up to {value['max_new_tokens']} tokens, temperature {value['temperature']:g}")]
    tau = "tau" if ascii_only else "τ"
    columns = ("at once", "tok/s", "speed-up", "TTFT p50", "p95", "ms/tok p50", "p95", tau, "failed")
    tables = []
    for run_values in value["runs"]:
        rows = [_row(level) for level in run_values["levels"]]
        title = f"{run_values['server']}: {run_values['model']} at {run_values['url']}"
        tables.append(make_table(title, columns, rows, ascii_only))
    notes = [shown(f"note: {said}") for run_values in value["runs"] for said in run_values["said"]]
    if len(value["runs"]) == 2 and not value["partial"]:
        at = value["stops_paying_at"]
        notes.append(
            Text(f"drafting stops paying at {at} at once" if at else "drafting pays at every concurrency measured")
        )
    if value["partial"]:
        notes.append(Text("PARTIAL: stopped before everything was measured."))
    return Group(*parts, *tables, *notes)


def _row(level: dict[str, Any]) -> tuple[str, ...]:
    def number(found: float | None, form: str) -> str:
        return "-" if found is None else format(found, form)

    first, pace = level["first_token_seconds"] or {}, level["token_seconds"] or {}
    return (
        str(level["concurrency"]),
        number(level["tokens_per_second"], ".1f"),
        number(level.get("speedup"), ".2f"),
        number(first.get("p50"), ".2f"),
        number(first.get("p95"), ".2f"),
        *(number(None if (at := pace.get(name)) is None else 1000 * at, ".0f") for name in ("p50", "p95")),
        number(level["tau"], ".2f"),
        str(level["failures"]),
    )
