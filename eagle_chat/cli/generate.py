"""`eagle-chat generate`: one answer for a script or a pipe."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from eagle_chat.cli.answer import INTERRUPTED, Session, TextOut, user_message
from eagle_chat.cli.options import Given
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import needs_ascii, say, without_surrogates
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Event, to_json
from eagle_chat.core.metrics import Metrics

FAILED = 1
# Lone surrogates cannot be encoded, terminals obey the others; JSON reads the same either way.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\ud800-\udfff\u2028\u2029]")


def run(given: Given, prompt: str | None, as_json: bool, as_jsonl: bool) -> int:
    """Answer once; the exit code. UserError where there is no prompt or both formats are asked for."""
    if as_json and as_jsonl:
        raise UserError("one output format expected, found --json and --jsonl: give only one of the two")
    settings = resolve(given)
    text = full_prompt(prompt)
    session = Session(settings)
    messages = [*session.system_messages(), user_message(text)]
    with session.stop:
        if as_jsonl:
            metrics = session.answer(messages, _write_event, trace=True)
        elif as_json:
            metrics = session.answer(messages, _nothing)
            _write_json(metrics.summary())
        else:
            metrics = session.answer(messages, session.shown(TextOut(), messages))
            say(metrics.stats_line(ascii=needs_ascii(sys.stderr)), quiet=True)
        session.remark(metrics)
    return _exit_code(metrics)


def full_prompt(prompt: str | None) -> str:
    """The prompt given, and after it what is piped in."""
    piped = ""
    if not sys.stdin.isatty():
        piped = sys.stdin.read().removeprefix("\ufeff").rstrip("\n")
    text = without_surrogates("\n\n".join(part for part in (prompt, piped) if part))
    if not text.strip():
        raise UserError("a prompt expected, found none: give -p TEXT, or pipe text in")
    return text


def _exit_code(metrics: Metrics) -> int:
    if metrics.finish_reason == "cancelled":
        return INTERRUPTED
    return FAILED if metrics.finish_reason == "error" else 0


def _nothing(_event: Event) -> None:
    """Show nothing of it."""


def _write_event(event: Event) -> None:
    _write_json(to_json(event))


def _write_json(value: dict[str, Any]) -> None:
    """One line of JSON, readable where stdout can show it, and valid everywhere."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    line = json.dumps(value, ensure_ascii=not unicode)
    line = _UNSAFE_IN_JSON.sub(lambda sign: f"\\u{ord(sign[0]):04x}", line)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
