"""An answer in the making as the page's explorer is told of it.

Every picture of a stream carries all cycles so far, so that none can be missed; each is a finished text, so that
Gradio, which sends only what changed, sends each once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from eagle_chat.core.events import Committed, Drafted, Event, Started, Verified
from eagle_chat.core.recording import Run
from eagle_chat.webui.explorer import cycle_data, runs_data
from eagle_chat.webui.measured import Measured

_numbers = itertools.count(1)


def shown(runs: list[Run], measured: Measured | None = None, tab: str = "mask", run: int = 0) -> dict[str, Any]:
    """Finished runs for the explorer, with what is known of the machine they ran on; it begins with number `run`.
    UserError where they are more than a page can hold."""
    return _value(next(_numbers), as_json(page(runs, measured)), tab=tab, run=run)


def page(runs: list[Run], measured: Measured | None = None) -> dict[str, Any]:
    """The explorer's data of these runs."""
    known = measured or Measured()
    return runs_data(runs, known.passes, known.plain)


def run_json(run: Run) -> str:
    """One run as it stands in a page's data."""
    return as_json(runs_data([run])["runs"][0])


def as_json(value: Any) -> str:
    """JSON without blanks; numbers are finite."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def conversation(pages: list[str], measured: Measured) -> dict[str, Any] | None:
    """A conversation's answers for the explorer, which begins with the last; None where there are none."""
    return _value(next(_numbers), _joined(pages, measured), run=len(pages) - 1) if pages else None


def _joined(pages: list[str], measured: Measured) -> str:
    """The explorer's data of runs that are JSON already, by `run_json`."""
    return as_json({**page([], measured), "runs": 0}).replace('"runs":0', f'"runs":[{",".join(pages)}]')


def _value(number: int, page: str, cycles: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """`id`: another one is another story, told from its beginning. `page`: the explorer's data as JSON. `cycles`: what
    came after it. `live`: whether more will come. `tab`: the panel that is open at first, `run`: the answer."""
    return {"id": number, "page": page, "cycles": cycles or [], "live": False, "tab": "mask", "run": 0, **more}


class LiveRun:
    """Collects the events of one answer."""

    def __init__(self, question: str, measured: Callable[[], Measured] = Measured) -> None:
        """`measured()`: what is known of the machine at that moment."""
        self._run, self._measured = Run(question), measured
        self._id = next(_numbers)
        self._page = ""
        self._cycles: list[str] = []
        self._drafted: Drafted | None = None
        self._verified: Verified | None = None

    def take(self, event: Event) -> None:
        """The next event."""
        self._run.events.append(event)
        if isinstance(event, Started):
            self._page = as_json(page([self._run], self._measured()))
        elif isinstance(event, Drafted):
            self._drafted, self._verified = event, None
        elif isinstance(event, Verified):
            self._verified = event
        elif isinstance(event, Committed):
            self._cycles.append(as_json(cycle_data(event, self._drafted, self._verified)))
            self._drafted = self._verified = None

    @property
    def events(self) -> list[Event]:
        """All events so far."""
        return self._run.events

    def value(self) -> dict[str, Any] | None:
        """What the explorer is told; None before the answer has begun."""
        return _value(self._id, self._page, list(self._cycles), live=True) if self._page else None

    def ended(self, pages: list[str]) -> dict[str, Any]:
        """The same story at its end, with the answers before it: `pages` are their `run_json`, this one's last."""
        return _value(self._id, _joined(pages, self._measured()))
