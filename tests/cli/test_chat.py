from __future__ import annotations

import io
import signal

import pytest

from eagle_chat.core.events import Committed
from tests.cli import fake_engine
from tests.cli.conftest import Program


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [f"{message['role']}: {message['content']}" for message in messages]


def test_plain_lines_in_answers_out(program: Program) -> None:
    ran = program(stdin="one\n\ntwo\n", notes=["same"])
    assert (ran.code, ran.out) == (0, "Hello world.\nHello world.\n")
    assert contents(ran.engine.asked[1]) == ["user: one", "assistant: Hello world.", "user: two"]
    assert ran.engine.states[0] is ran.engine.states[1]
    lines = ran.err.splitlines()
    assert lines[:3] == ["loading smollm2 ...", "smollm2, head fake, cpu, float32", "note: same"]
    assert sum(line.startswith("7 tok · ") for line in lines) == 2
    assert len(lines) == 5


def test_commands(program: Program) -> None:
    ran = program("--system", "S", stdin="one\n/clear\ntwo\n/help\n/nonsense\n /quit\n/tmp/x is what?\n/quit\nno\n")
    assert ran.code == 0
    assert [contents(messages)[-1] for messages in ran.engine.asked] == [
        "user: one",
        "user: two",
        "user:  /quit",
        "user: /tmp/x is what?",
    ]
    assert contents(ran.engine.asked[1]) == ["system: S", "user: two"]
    assert "/quit - leave" in ran.err
    assert "unknown command /nonsense" in ran.err


def test_an_answer_cut_by_the_budget_stays_in_the_conversation(program: Program) -> None:
    ran = program(stdin="one\ntwo\n", pieces=["par"], held="tial", reason="length")
    assert contents(ran.engine.asked[1])[1] == "assistant: partial"


def test_a_failed_turn_leaves_the_conversation_as_it_was(program: Program) -> None:
    ran = program(stdin="one\ntwo\n", stream_error=("UserError", "too long"))
    assert ran.code == 2
    assert [contents(messages) for messages in ran.engine.asked] == [["user: one"], ["user: two"]]
    assert ran.err.count("error: too long\n") == 2


def test_a_head_that_does_not_fit_is_said_once_in_a_conversation(program: Program) -> None:
    ran = program(stdin="q\n" * 6, accepted=0, repeat=5)
    assert ran.err.count("warning: this head does not seem to fit this target") == 1


def test_no_input_at_all(program: Program) -> None:
    ran = program(stdin="")
    assert (ran.code, ran.out) == (0, "")


class Typed(io.StringIO):
    """Lines typed by a person whose terminal only shows stderr."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in cycle 2 of every answer."""
    real = fake_engine.committed

    def interrupting(cycle: int, text: str, accepted: int = 1) -> Committed:
        if cycle == 2:
            signal.raise_signal(signal.SIGINT)
        return real(cycle, text, accepted)

    monkeypatch.setattr(fake_engine, "committed", interrupting)


@pytest.mark.usefixtures("interrupted")
def test_the_partial_answer_is_what_the_next_turn_sees(program: Program) -> None:
    ran = program(stdin=Typed("one\ntwo\n"))
    assert (ran.code, ran.out) == (0, "Hello world\nHello world\n")
    assert contents(ran.engine.asked[1]) == ["user: one", "assistant: Hello world", "user: two"]
    assert ran.engine.closed == 2
    assert ran.engine.states[0] is ran.engine.states[1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_ends_a_chat_from_a_pipe(program: Program) -> None:
    ran = program(stdin="one\ntwo\n")
    assert (ran.code, ran.out) == (130, "Hello world\n")


def test_ctrl_c_while_the_figures_are_drawn(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawing(*_: object, **__: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return "figures"

    monkeypatch.setattr("eagle_chat.core.metrics.Metrics.stats_line", drawing)
    ran = program(stdin=Typed("one\ntwo\n"))
    assert (ran.code, ran.out) == (0, "Hello world.\nHello world.\n")


def test_ctrl_c_that_interrupts_the_reading(program: Program) -> None:
    class Interrupted(Typed):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            if self.tell() == 0:
                self.seek(4)
                raise KeyboardInterrupt
            return super().readline()

    ran = program(stdin=Interrupted("one\ntwo\n"))
    assert ran.code == 0
    assert [contents(messages) for messages in ran.engine.asked] == [["user: two"]]
    assert "(Ctrl-D or /quit leaves)" in ran.err


def test_insisting_ends_the_program_at_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: object) -> Committed:
        while True:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fake_engine, "committed", stuck)
    ran = program(stdin=Typed("one\ntwo\n"))
    assert (ran.code, ran.out) == (130, "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
