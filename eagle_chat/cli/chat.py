"""The chat: a question in, the answer drawn while it is made and printed once, one line of figures."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.text import Text

from eagle_chat.cli import adjust, ask, commands, keys, session, store, theme
from eagle_chat.cli.answer import INTERRUPTED, Session, TextOut
from eagle_chat.cli.markdown import print_answer
from eagle_chat.cli.options import Given
from eagle_chat.cli.session import Saved
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.show import Answer, Show, TreeMode
from eagle_chat.cli.text import needs_ascii, one_line, say, without_surrogates
from eagle_chat.core import recording
from eagle_chat.core.chat import Message
from eagle_chat.core.config import TreeConfig
from eagle_chat.core.conversation import Conversation, Turn
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.events import Event
from eagle_chat.core.metrics import Metrics

PLAIN = TreeConfig(policy="none")
COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)


def run(given: Given, record: Path | None = None) -> int:
    """Chat until the input ends; the exit code. `record`: a file for the events of all answers."""
    settings = resolve(given)
    if record is not None:
        recording.check_writable(record)
    return Chat(Session(settings), record).loop()


class Chat:
    """One conversation on the terminal, or with plain lines from a pipe."""

    def __init__(self, engine_session: Session, record: Path | None = None) -> None:
        self.session = engine_session
        self.conversation = Conversation(engine_session.settings.system)
        self.tree_mode: TreeMode = "on"
        self.drafting = True
        self.typed = ask.typed()
        self.draws = theme.can_draw(sys.stdout)
        self.console = theme.console(sys.stdout)
        self.theme = theme.of_stream(sys.stdout, theme.has_colour(self.console))
        self.notes = theme.console(sys.stderr)
        self.notes_theme = theme.of_stream(sys.stderr, theme.has_colour(self.notes))
        self.metrics: Metrics | None = None
        self.default = ""
        """What stands in the next input, to be changed."""
        self.editing = False
        """Whether the next question replaces the last one; a command or Ctrl-C in its place leaves all as it is."""
        self._ask = ask.asker(lambda line: commands.completions(self, line), self._toolbar)
        self._record, self._runs = record, list[recording.Run]()
        self._saved_before = False
        self._exit_code = 0

    def loop(self) -> int:
        """Read, answer, repeat. In a pipe, the exit code of the last answer that failed."""
        self._greet()
        # From here on only `_read` lets Ctrl-C through: one pressed too often must not end the conversation.
        # The line editor shows what is typed; without it, echoed keys would end up in the middle of a picture.
        edited = isinstance(self._ask, ask.EditedLine)
        with self.session.stop, keys.unseen() if edited else contextlib.nullcontext():
            while (line := self._read()) is not None and self._take(without_surrogates(line)):
                pass
            self._autosave(ended=True)
        return 0 if self.typed else self._exit_code

    def _greet(self) -> None:
        say(self.session.about, quiet=True)
        if not self.typed:
            return
        say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves", quiet=True)
        with contextlib.suppress(EagleChatError):  # an offer, no more
            saved = session.load(store.last_conversation())
            if saved.conversation.turns or saved.pending:
                how = "the last conversation" if saved.ended else "the last conversation was not ended properly; it"
                say(f"{how} can be taken up again: /load last", quiet=True)

    def _read(self) -> str | None:
        """The next line without its end, None at the end of the input."""
        default, self.default = self.default, ""
        while True:
            try:
                with self.session.stop.released():
                    return self._ask(default)
            except EOFError:
                if self.typed:
                    say("")
                return None
            except KeyboardInterrupt:
                if not self.typed:
                    raise
                if not isinstance(self._ask, ask.EditedLine):
                    say("")
                say("(Ctrl-D or /quit leaves)", quiet=True)
                default, self.editing = "", False

    def _take(self, line: str) -> bool:
        """Do what the line asks; whether to go on."""
        match = COMMAND.fullmatch(line.rstrip())
        editing, self.editing = self.editing, False
        if match:
            try:
                go_on = commands.run(self, match[1], match[2] or "")
            except EagleChatError as error:
                say(f"error: {error}")
                self._exit_code = error.exit_code
                go_on = True
            self._autosave()
            if not go_on:
                return False
        elif line.strip():
            self.ask(line, self.conversation.before_last() if editing else None)
        return self.typed or self._exit_code != INTERRUPTED

    def ask(self, question: str, base: Conversation | None = None) -> None:
        """One question and its answer; both become part of the conversation, in which `base` replaces the present
        one. Nothing changes where that fails."""
        base = base or Conversation(self.conversation.system, list(self.conversation.turns))
        self._autosave(pending=question)
        turn = Turn(question, target=self.session.settings.load.base, seed=self.session.settings.sampling.seed)
        if self.complete(turn, base.messages(question)):
            self.conversation = Conversation(base.system, [*base.turns, turn])
        self._autosave()

    def complete(self, turn: Turn, prompt: Sequence[Message] | Sequence[int]) -> bool:
        """Stream an answer to `prompt` into `turn` and tell its figures; whether there is one."""
        events: list[Event] = []
        try:
            metrics = self.stream(prompt, events.append)
        except EagleChatError as error:
            say(f"error: {error}")
            self._exit_code = error.exit_code
            return False
        if metrics.finish_reason == "error":
            self._exit_code = EagleChatError.exit_code
        elif metrics.finish_reason == "cancelled":
            self._exit_code = INTERRUPTED
        self.metrics = metrics
        turn.answer += metrics.text
        turn.token_ids += metrics.token_ids
        turn.finish_reason = metrics.finish_reason
        turn.figures = metrics.stats_line()
        turn.events += events
        self._keep_run(turn, events)
        say(metrics.stats_line(ascii=needs_ascii(sys.stderr)), quiet=True)
        self.session.remark(metrics)
        here = self.session.settings.server.url is None  # a server cannot go on with an answer
        if self.typed and here and metrics.finish_reason in ("length", "cancelled") and turn.answer:
            say("(/continue goes on from here)", quiet=True)
        return turn.answered

    def stream(
        self,
        prompt: Sequence[Message] | Sequence[int],
        also: Callable[[Event], None],
        tree: TreeConfig | None = None,
        title: str = "",
        compared: bool = False,
    ) -> Metrics:
        """Show one answer in the way this output allows, and tell `also` of every event.

        `compared`: one of several to the same question, so it gets a fresh state, no steps, and is not printed.
        """
        trace = self._record is not None or (self.draws and self.tree_mode != "off")
        tree = tree or (None if self.drafting else PLAIN)
        if not self.draws:
            out = TextOut()
            try:
                return self.session.answer(prompt, _both(also, self.session.shown(out, prompt)), trace, tree, compared)
            finally:
                out.end_line()
        wait = self._wait if self.typed and not compared else None
        show = Show(self.console, self.theme, self.tree_mode, title, wait)
        try:
            with show:
                return self.session.answer(prompt, _both(also, self.session.shown(show, prompt)), trace, tree, compared)
        finally:
            if not compared:
                self.print_answer(show.progress.text)

    def print_answer(self, text: str) -> None:
        """Print a finished answer, once."""
        print_answer(self.console, text, self.theme)

    def rows(self, rows: Sequence[Text]) -> None:
        """Print rows for people on stderr."""
        for row in rows:
            row.no_wrap, row.end = False, "\n"
            self.notes.print(row, soft_wrap=not self.notes.is_terminal)

    def _wait(self) -> Answer:
        """What the person wants next at a step."""
        with keys.keyboard() as keyboard:
            while True:
                key = keyboard.wait()
                if key in ("enter", " ", "right"):
                    return "next"
                if key == "n":
                    return "cycle"
                if key in ("c", "q", "escape"):
                    return "continue"
                if key in ("interrupt", "end"):
                    self.session.stop.press()
                    return "stop"

    def _keep_run(self, turn: Turn, events: list[Event]) -> None:
        if self._record is None:
            return
        continued = len(turn.events) > len(events)
        self._runs.append(recording.Run(None if continued else turn.question, events))
        recording.write(self._record, self._runs)

    def saved(self, pending: str | None = None, ended: bool = False) -> Saved:
        """The conversation with all that belongs to it."""
        settings = self.session.settings
        options = {**adjust.values(settings), "drafting": self.drafting}
        return Saved(self.conversation, settings.load.base, options, pending, ended)

    def _autosave(self, pending: str | None = None, ended: bool = False) -> None:
        """Keep the conversation of a person against a crash. That this fails must not end it."""
        if not self.typed or not (self.conversation.turns or pending):
            return
        path = store.last_conversation()
        try:
            if not self._saved_before:
                store.rotate()
                self._saved_before = True
            session.save(path, self.saved(pending, ended), with_events=False)
        except EagleChatError as error:
            self.session.say_once(str(error))

    def _toolbar(self) -> str:
        """Figures of the last answer, and how the next one will be made."""
        sampling = self.session.settings.sampling
        drafting = "drafting" if self.drafting else "plain"
        gap = f" {self.theme.signs.gap} "
        parts = [f"{drafting}{gap}T {sampling.temperature:g}{gap}seed {sampling.seed}", "Alt-Enter: new line"]
        metrics = self.metrics
        if metrics is not None and metrics.tau is not None:
            speed = f"{gap}{metrics.tokens_per_second:.1f} tok/s" if metrics.tokens_per_second else ""
            parts.insert(0, f"{self.theme.signs.tau} {metrics.tau:.2f}{speed}")
        else:
            parts.insert(0, one_line(self.session.settings.load.base))
        return " " + "   ".join(parts)

    @contextlib.contextmanager
    def changed_seed(self, seed: int) -> Iterator[None]:
        """Inside, answers are drawn with another seed."""
        before = self.session.settings
        sampling = dataclasses.replace(before.sampling, seed=seed)
        self.session.settings = dataclasses.replace(before, sampling=sampling)
        try:
            yield
        finally:
            self.session.settings = before


def _both(*takers: Callable[[Event], None]) -> Callable[[Event], None]:
    def take(event: Event) -> None:
        for taker in takers:
            taker(event)

    return take
