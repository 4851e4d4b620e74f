"""What drawing costs: the share of a second that the live view takes at so many cycles a second.

    python bench/drawing.py [--cycles 30] [--seconds 8] [--size 200x50] [--recording FILE]

Plays a recording's cycles at a fixed rate, once with the live view and once with plain text, writes both to a terminal
in memory, and compares the processor time of this process. The screen's own work is not counted.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterator
from itertools import chain, cycle
from pathlib import Path

from rich.console import Console

from eagle_chat.cli.progress import Progress
from eagle_chat.cli.show import Show
from eagle_chat.cli.theme import Theme
from eagle_chat.core import recording
from eagle_chat.core.assets import asset_path
from eagle_chat.core.events import Committed, Event, Finished, Started


class Sink(io.StringIO):
    """Takes everything, counts it, keeps nothing."""

    written = 0

    def write(self, text: str) -> int:
        """Count."""
        self.written += len(text)
        return len(text)


def endless(events: list[Event]) -> Iterator[Event]:
    """The run's cycles over and over, as one long answer."""
    body = [event for event in events if not isinstance(event, Started | Finished)]
    return chain(events[:1], cycle(body))


def processor_seconds(events: Iterator[Event], take: Callable[[Event], None], cycles: float, seconds: float) -> float:
    """Processor time spent in `take` while events come at `cycles` a second for `seconds`."""
    spent, passed = 0.0, 0
    start = time.perf_counter()
    while passed < cycles * seconds:
        event = next(events)
        before = time.process_time()
        take(event)
        spent += time.process_time() - before
        if isinstance(event, Committed):
            passed += 1
            time.sleep(max(start + passed / cycles - time.perf_counter(), 0.0))
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--size", default="200x50")
    parser.add_argument("--recording", type=Path, default=asset_path("recordings", "demo.jsonl"))
    given = parser.parse_args()
    width, height = map(int, given.size.split("x"))
    (run, *_) = recording.read(given.recording)
    sink = Sink()
    console = Console(file=sink, width=width, height=height, force_terminal=True, color_system="256")
    with Show(console, Theme()) as show:
        on = processor_seconds(endless(run.events), show, given.cycles, given.seconds)
    progress = Progress()
    off = processor_seconds(endless(run.events), progress.take, given.cycles, given.seconds)
    print(f"screen {given.size}, {given.cycles:g} cycles/s for {given.seconds:g} s, {sink.written} characters written")
    print(f"drawing on   {on / given.seconds:6.2%} of the time")
    print(f"drawing off  {off / given.seconds:6.2%} of the time")


if __name__ == "__main__":
    main()
