"""`eagle-chat replay`: plays a recording with the same pictures as the chat had. No model is needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle_chat.cli import keys, steps, theme
from eagle_chat.cli.answer import INTERRUPTED, StopRequest, TextOut
from eagle_chat.cli.markdown import print_answer
from eagle_chat.cli.page import replay_page
from eagle_chat.cli.progress import Progress
from eagle_chat.cli.show import Show
from eagle_chat.cli.text import needs_ascii, say
from eagle_chat.core import recording
from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Event
from eagle_chat.core.metrics import Metrics
from eagle_chat.core.recording import Run

DEMO = ("recordings", "demo.jsonl")
DEMO_SECONDS = 20.0
"""About as long as the demo plays when no speed is given."""
PAUSED_HINT = "space: play   right, left: on, back   s: steps   q: leave"
FASTEST, SLOWEST = 64.0, 1 / 16


def run(
    file: Path | None,
    demo: bool,
    speed: float | None,
    step: bool,
    seek: int,
    html: Path | None = None,
    beside: Path | None = None,
) -> int:
    """Play a file or the demo, or write it as a page; the exit code. UserError where there is nothing to play."""
    if (file is None) != demo:
        raise UserError("one recording expected: give a FILE, or --demo")
    if html is not None:
        say(replay_page(html, file, DEMO if demo else None, beside), quiet=True)
        return 0
    if beside is not None:
        raise UserError("--beside lays a second recording into a page: give --html too")
    if speed is not None and not 0 <= speed <= 1000:
        raise UserError(f"a speed from 0 to 1000 expected, found {speed:g}: 1 is as it was, 0 without waiting")
    path = asset_path(*DEMO) if file is None else file
    runs = recording.read(path)
    if speed is None:
        speed = max(sum(map(_seconds, runs)) / DEMO_SECONDS, 1.0) if demo else 1.0
    if demo:
        pace = f"{speed:.1f} times as fast as it was made" if speed else "without waiting"
        say(f"the recorded demo, {pace}", quiet=True)
    for number, one in enumerate(runs):
        left = _play(one, speed, step, seek if number == 0 else 0)
        if left is not None:
            return left
    return 0


def _seconds(one: Run) -> float:
    return sum(_pause(event) for event in one.events)


def _pause(event: Event) -> float:
    return sum(event.seconds.values()) if isinstance(event, Committed) else 0.0


def _play(one: Run, speed: float, step: bool, seek: int) -> int | None:
    """One answer; an exit code where the person left before its end."""
    started = one.started
    if started is not None:
        head = f"head {started.head}" if started.head else "no draft head"
        say(f"{started.target}, {head}, {started.policy}, {started.device}, {started.dtype}", quiet=True)
    if one.question is not None:
        say(f"> {one.question}")
    metrics = Metrics()
    for event in one.events:
        metrics.add(event)
    if theme.can_draw(sys.stdout):
        left = _drawn(one, speed, step, seek)
    else:
        out = TextOut()
        for event in one.events:
            out(event)
        left = None
    if left is None:
        say(metrics.stats_line(ascii=needs_ascii(sys.stderr)), quiet=True)
    return left


def _drawn(one: Run, speed: float, step: bool, seek: int) -> int | None:
    console = theme.console(sys.stdout)
    look = theme.of_stream(sys.stdout, theme.has_colour(console))
    show = Show(console, look)
    player = Player(one, show, speed, step)
    player.go_to(seek)
    with StopRequest() as stop:
        try:
            with _keyboard() as keyboard, show:
                left = player.play(keyboard, stop)
        finally:
            print_answer(console, player.text if player.ended else show.progress.text, look)
    return left


@contextmanager
def _keyboard() -> Iterator[keys.Keyboard | None]:
    """The keyboard, where a person sits at it."""
    if not sys.stdin.isatty():
        yield None
        return
    with keys.keyboard() as keyboard:
        yield keyboard


class Player:
    """Where in a recording the picture stands, and what moves it. Positions are numbers of events taken."""

    def __init__(self, one: Run, show: Show, speed: float, stepping: bool) -> None:
        self._events, self._show, self._speed = one.events, show, speed
        self._stops = [at + 1 for at, event in enumerate(one.events) if isinstance(event, Committed)]
        self._at = 0
        self._paused = stepping
        self._step: int | None = 0 if stepping else None
        self.ended = False

    @property
    def text(self) -> str:
        """The whole answer."""
        whole = Progress()
        for event in self._events:
            whole.take(event)
        return whole.text

    def go_to(self, cycle: int) -> None:
        """Stand after cycle `cycle`, or as near as there is one."""
        place = min(max(cycle, 0), len(self._stops) - 1)
        self._jump(self._stops[place] if place >= 0 and cycle > 0 and self._stops else 0)

    def play(self, keyboard: keys.Keyboard | None, stop: StopRequest) -> int | None:
        """Play to the end; an exit code where the person left before it."""
        if self._paused and self._at == 0:
            self._move(1)
        while not self.ended:
            if self._paused and keyboard is not None:
                self._draw()
                key = keyboard.wait()
            else:
                pause = self._advance()
                key = self._rest(keyboard, pause)
            if stop.asked or key == "interrupt":
                return INTERRUPTED
            if key in ("q", "end", "escape"):
                return 0
            self._press(key)
        return None

    def _rest(self, keyboard: keys.Keyboard | None, pause: float) -> str | None:
        """Wait as long as the cycle took; a key ends the wait."""
        seconds = pause / self._speed if self._speed else 0.0
        if keyboard is not None:
            return keyboard.wait(seconds) if seconds else keyboard.poll()
        time.sleep(seconds)
        return None

    def _advance(self) -> float:
        """Take the events up to the next picture; the seconds that it took to make."""
        while self._at < len(self._events):
            event = self._events[self._at]
            self._at += 1
            self._show(event)
            if isinstance(event, Committed):
                return _pause(event)
        self.ended = True
        return 0.0

    def _press(self, key: str | None) -> None:
        if key == " ":
            self._paused = not self._paused
            self._step = None
        elif key == "s":
            self._paused, self._step = True, 0
        elif key in ("right", "enter"):
            self._forward()
        elif key == "left":
            self._paused = True
            self._back()
        elif key in ("+", "=", "-"):
            factor = 0.5 if key == "-" else 2.0
            self._speed = min(max(self._speed * factor, SLOWEST), FASTEST)

    def _forward(self) -> None:
        cycle = self._show.progress.cycle
        self._paused = True
        told = steps.steps(cycle, self._show.theme) if cycle is not None else []
        if self._step is not None and self._step + 1 < len(told):
            self._step += 1
        else:
            self._move(1)

    def _back(self) -> None:
        if self._step:
            self._step -= 1
        else:
            self._move(-1)

    def _move(self, by: int) -> None:
        """Go to another cycle; beyond the last one is the end."""
        self._step = None if self._step is None else 0
        passed = sum(1 for stop in self._stops if stop <= self._at)
        place = passed - 1 + by
        if place >= len(self._stops):
            self.ended = True
        elif place >= 0:
            self._jump(self._stops[place])

    def _jump(self, to: int) -> None:
        progress = Progress()
        for event in self._events[:to]:
            progress.take(event)
        self._at = to
        self._show.replace(progress)

    def _draw(self) -> None:
        cycle = self._show.progress.cycle
        number = self._show.progress.metrics.cycles
        step = self._step if cycle is not None else None
        last = len(self._stops) - 1
        self._show.draw(step, f"cycle {number} of {last}   {PAUSED_HINT}")
