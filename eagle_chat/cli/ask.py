"""Reading what a person types: an edited line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from eagle_chat.cli import store
from eagle_chat.cli.theme import can_draw

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "
Completions = Callable[[str], Iterable[tuple[str, str]]]
"""From the line up to the cursor: words that could stand in place of the last one, each with what it means."""


class Asker(Protocol):
    """Reads one question or command. EOFError at the end of the input, KeyboardInterrupt on Ctrl-C."""

    def __call__(self, default: str = "") -> str:
        """The next line; `default` stands in it to be changed."""
        ...


def typed() -> bool:
    """Whether a person types."""
    return sys.stdin.isatty()


def piped_line(default: str = "") -> str:  # noqa: ARG001 - nobody is there to change it
    """The next line of a pipe or file."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n").removeprefix("\ufeff")


def plain_line(default: str = "") -> str:
    """One line typed by a person on a terminal that cannot be drawn on, or whose output goes elsewhere."""
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):  # Windows has its own line editing
            import readline  # being imported is what makes `input` editable

            readline.set_startup_hook(lambda: readline.insert_text(default))
        return input(PROMPT)
    # `input` would write its prompt into the file or pipe that takes the answers.
    sys.stderr.write(PROMPT)
    sys.stderr.flush()
    return piped_line()


def asker(completions: Completions, toolbar: Callable[[], str]) -> Asker:
    """The way to read that suits the input and the output."""
    if not typed():
        return piped_line
    if can_draw(sys.stdout):
        return EditedLine(completions, toolbar)
    return plain_line


class EditedLine:
    """prompt_toolkit: history, completion of commands, several lines, a toolbar."""

    def __init__(self, completions: Completions, toolbar: Callable[[], str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import ColorDepth

        path = store.history_file()
        self._toolbar = toolbar
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(path) if path else InMemoryHistory(),
            completer=_completer(completions),
            key_bindings=_keys(),
            multiline=True,  # so that a pasted text keeps its lines; Enter still sends
            prompt_continuation="  ",
            bottom_toolbar=self._bottom,
            complete_while_typing=True,
            reserve_space_for_menu=4,
            color_depth=ColorDepth.MONOCHROME if os.environ.get("NO_COLOR") else None,
            enable_history_search=False,
            include_default_pygments_style=False,
        )

    def __call__(self, default: str = "") -> str:
        """The next line or lines."""
        return self._session.prompt(PROMPT, default=default, style=_style())

    def _bottom(self) -> Any:
        return [("", self._toolbar())]  # as fragments: nothing in it is markup


def _style() -> Any:
    from prompt_toolkit.styles import Style

    return Style.from_dict({"bottom-toolbar": "noreverse dim", "prompt": "bold"})


def _keys() -> KeyBindings:
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("enter", filter=completion_is_selected)
    def _take_completion(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer(completions: Completions) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            before = document.text_before_cursor
            if not before.startswith("/") or "\n" in before:
                return
            word = before.rpartition(" ")[2]
            for text, meaning in completions(before):
                yield Completion(text, start_position=-len(word), display_meta=meaning)

    return Commands()
