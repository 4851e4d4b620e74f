"""What a person sees of a running training: a live table on a terminal, lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Protocol, Self

from eagle_chat.training.timing import duration

WINDOW = 50
"""Steps over which loss, acceptance and speed are averaged for people."""
LINE_EVERY = 10.0
"""Seconds between lines where there is no terminal."""


class View(Protocol):
    """Shows a run; a context manager around it."""

    def begin(self, step: int, total: int) -> None:
        """The run starts, or goes on, at `step` of `total`."""
        ...

    def step(self, row: dict[str, Any], tokens_per_second: float) -> None:
        """One optimiser step, as in the curve."""
        ...

    def validation(self, row: dict[str, Any]) -> None:
        """One validation, as in the curve."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Silent:
    """Shows nothing: for further processes, and for tests."""

    def begin(self, step: int, total: int) -> None:
        """See `View`."""

    def step(self, row: dict[str, Any], tokens_per_second: float) -> None:
        """See `View`."""

    def validation(self, row: dict[str, Any]) -> None:
        """See `View`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Averages:
    """Means over the last steps, and the time left."""

    def __init__(self) -> None:
        self.total = 0
        self.rows: deque[dict[str, Any]] = deque(maxlen=WINDOW)
        self.speeds: deque[float] = deque(maxlen=WINDOW)
        self.times: deque[float] = deque(maxlen=WINDOW)
        self.validation: dict[str, Any] | None = None

    def begin(self, total: int) -> None:
        self.total = total
        self.times.append(time.monotonic())

    def add(self, row: dict[str, Any], speed: float) -> None:
        self.rows.append(row)
        self.speeds.append(speed)
        self.times.append(time.monotonic())

    @property
    def loss(self) -> float:
        steps = len(self.rows[-1]["acceptance"])  # losses of another number of unroll steps do not compare
        same: list[float] = [row["loss"] for row in self.rows if len(row["acceptance"]) == steps]
        return sum(same) / len(same)

    @property
    def acceptance(self) -> str:
        steps = len(self.rows[-1]["acceptance"])
        same = [row["acceptance"] for row in self.rows if len(row["acceptance"]) == steps]
        return _shares([sum(column) / len(same) for column in zip(*same, strict=True)])

    @property
    def seconds_per_step(self) -> float:
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)

    @property
    def left(self) -> str:
        return duration((self.total - self.rows[-1]["step"]) * self.seconds_per_step)

    @property
    def speed(self) -> float:
        return sum(self.speeds) / len(self.speeds)


def _shares(values: list[float]) -> str:
    return "/".join(f"{value:.3f}" for value in values)


class Lines:
    """A line every few seconds and for every validation."""

    def __init__(self) -> None:
        self._averages = _Averages()
        self._last = 0.0

    def begin(self, step: int, total: int) -> None:
        """See `View`."""
        self._averages.begin(total)
        self._say(f"step {step} of {total}")

    def step(self, row: dict[str, Any], tokens_per_second: float) -> None:
        """See `View`."""
        shown = self._averages
        shown.add(row, tokens_per_second)
        if time.monotonic() - self._last < LINE_EVERY and row["step"] < shown.total:
            return
        self._last = time.monotonic()
        self._say(
            f"step {row['step']}/{shown.total} epoch {row['epoch']} loss {shown.loss:.3f} "
            f"acceptance {shown.acceptance} "
            f"{shown.speed:.0f} tokens/s {shown.seconds_per_step:.2f} s/step {shown.left} left"
        )

    def validation(self, row: dict[str, Any]) -> None:
        """See `View`."""
        mark = ", best so far" if row["best"] else ""
        self._say(
            f"step {row['step']} validation: loss {row['loss']:.3f} acceptance {_shares(row['acceptance'])} "
            f"chain tau {row['chain_tau']:.3f}{mark}"
        )

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class LiveTable:
    """One table, redrawn in place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._averages = _Averages()
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, get_renderable=self._table)

    def begin(self, step: int, total: int) -> None:
        """See `View`."""
        self._averages.begin(total)

    def step(self, row: dict[str, Any], tokens_per_second: float) -> None:
        """See `View`."""
        self._averages.add(row, tokens_per_second)

    def validation(self, row: dict[str, Any]) -> None:
        """See `View`."""
        self._averages.validation = row

    def _table(self) -> Any:
        from rich.table import Table

        table = Table("", "training", "validation")
        shown = self._averages
        if not shown.rows:
            return table
        row, held_out = shown.rows[-1], shown.validation
        table.add_row("step", f"{row['step']} of {shown.total}", str(held_out["step"]) if held_out else "")
        table.add_row("loss", f"{shown.loss:.3f}", f"{held_out['loss']:.3f}" if held_out else "")
        table.add_row("acceptance by step", shown.acceptance, _shares(held_out["acceptance"]) if held_out else "")
        table.add_row("chain tau", "", f"{held_out['chain_tau']:.3f}" if held_out else "")
        table.add_row("answer tokens/s", f"{shown.speed:.0f} ({shown.seconds_per_step:.2f} s a step)", "")
        table.add_row("learning rate", f"{row['learning_rate']:.2e}", "")
        table.add_row("time left", shown.left, "")
        return table

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def choose_view(main_process: bool = True) -> View:
    """The table where stderr is a terminal, lines elsewhere, nothing in further processes."""
    if not main_process:
        return Silent()
    return LiveTable() if sys.stderr.isatty() else Lines()
