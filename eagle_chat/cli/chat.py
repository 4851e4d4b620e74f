"""The line-based chat: a line in, the answer streamed out, one line of figures."""

from __future__ import annotations

import contextlib
import re
import sys

from eagle_chat.cli.answer import INTERRUPTED, Session, TextOut, user_message
from eagle_chat.cli.options import Given
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import needs_ascii, say, without_surrogates
from eagle_chat.core.errors import EagleChatError

PROMPT = "> "
COMMANDS = {
    "/help": "show these commands",
    "/clear": "forget the conversation so far",
    "/quit": "leave (so does Ctrl-D)",
}


def run(given: Given) -> int:
    """Chat until the input ends; the exit code."""
    settings = resolve(given)
    return Chat(Session(settings)).loop()


class Chat:
    """One conversation on the terminal, or with plain lines from a pipe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._messages = session.system_messages()
        self._typed = sys.stdin.isatty()
        self._exit_code = 0

    def loop(self) -> int:
        """Read, answer, repeat. In a pipe, the exit code of the last answer that failed."""
        self._greet()
        # From here on only `_read` lets Ctrl-C through: one pressed too often must not end the conversation.
        with self._session.stop:
            while (line := self._read()) is not None and self._take(without_surrogates(line)):
                pass
        return 0 if self._typed else self._exit_code

    def _take(self, line: str) -> bool:
        """Do what the line asks; whether to go on."""
        if re.fullmatch(r"/[a-z]+\s*", line):
            if line.strip() == "/quit":
                return False
            self._command(line.strip())
        elif line.strip():
            self._turn(line)
        return self._typed or self._exit_code != INTERRUPTED

    def _greet(self) -> None:
        about = self._session.engine.describe()
        head = f"head {about['head']}" if about.get("head") else "no draft head"
        say(f"{about.get('target')}, {head}, {about.get('device')}, {about.get('dtype')}", quiet=True)
        if self._typed:
            say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves", quiet=True)

    def _read(self) -> str | None:
        """The next line without its end, None at the end of the input."""
        if not self._typed:
            with self._session.stop.released():
                line = sys.stdin.readline()
            return line.rstrip("\r\n").removeprefix("\ufeff") if line else None
        while True:
            try:
                with self._session.stop.released():
                    return _ask()
            except EOFError:
                say("")
                return None
            except KeyboardInterrupt:
                say("")
                say("(Ctrl-D or /quit leaves)", quiet=True)

    def _command(self, command: str) -> None:
        if command == "/clear":
            # The decoding state stays: what the next prompt shares with its tokens is not computed again.
            self._messages = self._session.system_messages()
            say("the conversation starts anew", quiet=True)
            return
        if command != "/help":
            say(f"unknown command {command}; begin the line with a blank to send it as a question")
        for name, meaning in COMMANDS.items():
            say(f"{name} - {meaning}", quiet=True)

    def _turn(self, question: str) -> None:
        """One question and its answer; both become part of the conversation."""
        asked = [*self._messages, user_message(question)]
        out = TextOut()
        try:
            metrics = self._session.answer(asked, out)
        except EagleChatError as error:
            out.end_line()
            say(f"error: {error}")
            self._exit_code = error.exit_code
            return
        if metrics.finish_reason == "error":
            self._exit_code = EagleChatError.exit_code
        elif metrics.finish_reason == "cancelled":
            self._exit_code = INTERRUPTED
        if metrics.text or metrics.finish_reason == "stop":
            self._messages = [*asked, {"role": "assistant", "content": metrics.text}]
        say(metrics.stats_line(ascii=needs_ascii(sys.stderr)), quiet=True)
        self._session.remark(metrics)


def _ask() -> str:
    """One line typed by a person, edited with readline where Python has it."""
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # Windows has its own line editing
            import readline  # noqa: F401 - being imported is what makes `input` editable
        return input(PROMPT)
    # `input` would write its prompt into the file or pipe that takes the answers.
    sys.stderr.write(PROMPT)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")
