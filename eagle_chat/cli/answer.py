"""One answer from the engine, as the commands need it: interruptible, counted, its remarks made once."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, cast

from eagle_chat.cli.options import Settings
from eagle_chat.cli.text import Cleaner, say
from eagle_chat.core.events import Committed, Event, Finished, Started
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving.config import check_installed

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message
    from eagle_chat.core.config import LoadConfig, TreeConfig
    from eagle_chat.core.engine import Engine
    from eagle_chat.serving.remote import RemoteEngine

INTERRUPTED = 130
WEAK_HEAD = "weak head"
INSIST = 3
"""This many Ctrl-C during one answer end the program at once, should a cycle never end."""


class StopRequest:
    """While entered, Ctrl-C sets `asked` instead of tearing a decoding cycle apart."""

    def __init__(self) -> None:
        self._times = 0
        self._previous: Any = None

    @property
    def asked(self) -> bool:
        """Whether Ctrl-C was pressed since the last `reset`."""
        return self._times > 0

    def reset(self) -> None:
        """A new answer begins."""
        self._times = 0

    def press(self) -> None:
        """Ask, as one Ctrl-C does; for whoever reads the keyboard itself."""
        self._times += 1

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._times += 1
        if self._times >= INSIST:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._previous = signal.getsignal(signal.SIGINT)
        if self._previous != signal.SIG_IGN:  # a program in the background may have been told to ignore it
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Inside, Ctrl-C is what it was before this object was entered: a KeyboardInterrupt."""
        own = signal.signal(signal.SIGINT, self._previous)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, own)


class Session:
    """What lasts from one answer to the next: engine, decoding state, remarks already made."""

    def __init__(self, settings: Settings) -> None:
        """Load the engine; slow. Progress goes to stderr, whatever a library would print on stdout too."""
        self.settings = settings
        self.stop = StopRequest()
        self._said: set[str] = set()
        self.load(settings.load)

    def system_messages(self) -> list[Message]:
        """The messages before the first question."""
        system = self.settings.system
        return [] if system is None else [{"role": "system", "content": system}]

    def answer(
        self,
        prompt: Sequence[Message] | Sequence[int],
        show: Callable[[Event], None],
        trace: bool = False,
        tree: TreeConfig | None = None,
        fresh: bool = False,
    ) -> Metrics:
        """Stream one answer to `show`. `tree`: other than that of the settings. `fresh`: reuse nothing of the turns
        before, so that times can be compared.

        While `stop` is entered, Ctrl-C ends the answer after the cycle, with the reason "cancelled".
        """
        metrics = Metrics()

        def take(event: Event) -> None:
            metrics.add(event)
            if not fresh:
                self._total.add(event)
            if isinstance(event, Started):
                for note in event.notes:
                    self.say_once(note)
            show(event)

        self.stop.reset()
        state: Any = self.engine.new_state() if fresh else self._state  # each engine knows its own
        events = self.engine.stream(
            prompt,
            sampling=self.settings.sampling,
            tree=tree or self.settings.tree,
            state=state,
            trace=trace,
        )
        with contextlib.closing(events):
            for event in events:
                take(event)
                if self.stop.asked and isinstance(event, Started | Committed):
                    break
        if metrics.finished is None:
            take(Finished("cancelled", "", metrics.cycles, len(metrics.token_ids)))
        return metrics

    def shown(
        self, show: Callable[[Event], None], prompt: Sequence[Message] | Sequence[int]
    ) -> Callable[[Event], None]:
        """`show`, without the reasoning of a model that thinks where the settings hide it."""
        if self.settings.show_thinking or self.settings.server.url is not None:
            return show
        from eagle_chat.cli.thinking import hiding

        chat = cast("Engine", self.engine).chat  # no server is named
        ids = [item for item in prompt if isinstance(item, int)]
        if not ids:
            return hiding(show, chat.opens_thinking)
        # An answer that goes on: inside its reasoning, or past it.
        return hiding(show, True) if chat.ends_thinking(ids) else show

    def load(self, config: LoadConfig) -> None:
        """Take another engine; the present one stays where that fails."""
        engine: Engine | RemoteEngine
        if self.settings.server.url is not None:
            check_installed()
            from eagle_chat.serving.remote import connect

            engine = connect(self.settings.server, config, lambda: self.stop.asked)
            config = dataclasses.replace(config, base=engine.name)
        else:
            import eagle_chat

            say(f"loading {config.base} ...", quiet=True)
            with contextlib.redirect_stdout(sys.stderr):
                engine = eagle_chat.load_engine(config)
        self.engine, self._state, self._total = engine, engine.new_state(), Metrics()
        self._said.discard(WEAK_HEAD)
        self.settings = dataclasses.replace(self.settings, load=config)

    @property
    def about(self) -> str:
        """Who answers, in one line."""
        about = self.engine.describe()
        if self.settings.server.url is not None:
            return f"{about['target']}, {about['device']}: it drafts as it was started, /tree shows what it tells"
        head = f"head {about['head']}" if about.get("head") else "no draft head"
        return f"{about.get('target')}, {head}, {about.get('device')}, {about.get('dtype')}"

    def remark(self, metrics: Metrics) -> None:
        """Say on stderr what a person should know about the answer just given."""
        if metrics.finished and metrics.finished.message:
            say(metrics.finished.message)
        if self._total.weak_head_warning and WEAK_HEAD not in self._said:
            self._said.add(WEAK_HEAD)
            say(f"warning: {self._total.weak_head_warning}")

    def say_once(self, note: str) -> None:
        """A note on stderr, unless it was said before."""
        if note not in self._said:
            self._said.add(note)
            say(f"note: {note}", quiet=True)


def user_message(text: str) -> Message:
    """A question in the form the engine takes."""
    return {"role": "user", "content": text}


class TextOut:
    """Shows the text of one answer on stdout as it comes."""

    def __init__(self) -> None:
        self._cleaner = Cleaner()
        self._at_line_start = True

    def __call__(self, event: Event) -> None:
        """Show what `event` adds; the last one ends the line."""
        if isinstance(event, Committed):
            self._write(self._cleaner.feed(event.text))
        elif isinstance(event, Finished):
            self._write(self._cleaner.feed(event.text) + self._cleaner.flush())
            self.end_line()

    def end_line(self) -> None:
        """Go to the start of a line."""
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")
