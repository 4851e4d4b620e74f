"""`eagle-chat doctor`: findings about a pair and the machine, for people or as JSON."""

from __future__ import annotations

import contextlib
import json
import sys

import eagle_chat
from eagle_chat.bench.prompts import Question, read_questions, select
from eagle_chat.cli import theme as themes
from eagle_chat.cli.findings_page import Page
from eagle_chat.cli.options import Given
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import say
from eagle_chat.core.progress import reporting
from eagle_chat.doctor.examine import Run, examine_files, examine_run
from eagle_chat.doctor.findings import as_document, exit_code, worst

QUESTIONS, TOKENS = 3, 48
"""Asked in the short run, and the longest answer: enough cycles to tell a head that fits from one that does not."""


def run(given: Given, with_run: bool, as_json: bool) -> int:
    """Examine; the exit code: 0 without an error, else that of the first one (3: the head does not fit)."""
    settings = resolve(given)
    console = themes.console()
    page = Page(console, themes.of_stream(sys.stdout, themes.has_colour(console)), quiet=as_json)
    draft = settings.load.draft
    page.title(f"{settings.load.base} + {'its head' if draft is None else 'no head' if draft == 'none' else draft}")
    if not as_json:
        say("looking at machine and files ...", quiet=True)
    with contextlib.redirect_stdout(sys.stderr):  # what a library prints is no finding
        findings = list(examine_files(settings.load))
    page.show(findings)
    if with_run and worst(findings) != "error":
        plan = Run(_questions(), TOKENS, settings.tree, eagle_chat.load_engine)
        with reporting() as report, contextlib.redirect_stdout(sys.stderr):
            later = list(examine_run(settings.load, plan, report))
        page.show(later)
        findings += later
    if as_json:
        value = as_document(findings, target=settings.load.base, head=draft, ran=with_run)
        sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")
    page.verdict(findings, with_run)
    return exit_code(findings)


def _questions() -> list[Question]:
    """Single questions of different categories."""
    return [Question(one.id, one.category, one.turns[:1]) for one in select(read_questions("builtin"), QUESTIONS)]
