from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.cli.text import LONGEST_SEQUENCE, Cleaner, clean, dim, one_line, without_surrogates
from tests.cli.conftest import Program, run_process

SHOWN_AS_THEY_ARE = [
    "[INST] hi [/INST]",
    "a[i] = b[j] and [bold]x",
    "[bold red]x[/bold red] [link=http://a]b[/link]",
    ":smile:",
    "  leading spaces",
    "    def f(a , b):\n\treturn a",
    "a , b",
    "<think>x</think> List<String> <b>hi</b>",
    "**not** _markdown_ `here` {braces} %s \\n",
    "é 好 👩‍💻 \u202b עברית \ufffd",
]


@pytest.mark.parametrize("text", SHOWN_AS_THEY_ARE)
def test_text_is_data(program: Program, text: str) -> None:
    assert program("generate", "-p", text, pieces=[text]).out == text + "\n"
    assert program("generate", "-p", "q", pieces=list(text)).out == text + "\n"
    assert program("generate", "-p", text).engine.asked[0][-1]["content"] == text
    chat = program(stdin=f" {text.splitlines()[0]}\n", pieces=["", text])
    assert chat.out == text + "\n"
    refused = program("generate", "-p", "q", load_error=("UserError", text))
    assert f"error: {one_line(text)}\n" in refused.err
    assert one_line(text) in program("generate", "-p", "q", notes=[text]).err


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x1bPq#0\x1b\\a\x1b_x\x1b\\b\x1b^y\x07c", "abc"),
        ("a\x1b[2Jb\x1b[1;1Hc\x1bcd\x1b(0e", "abcde"),
        ("\x9b31mred\x9d0;t\x9cx", "redx"),
        ("a\rb\x08c\x00d\x7fe\x07", "abcde"),
        ("line\r\nnext\ttab\x0b\x0c", "line\nnext\ttab"),
        ("\x1b", ""),
        ("a\x1b[", "a["),
        ("\x1b]never ended", "never ended"),
        ("\x1bé", "é"),
    ],
)
def test_escape_sequences_are_stripped(program: Program, raw: str, shown: str) -> None:
    assert clean(raw).rstrip("[") == shown.rstrip("[")
    for pieces in ([raw], list(raw)):
        out = program("generate", "-p", "q", pieces=["", *pieces]).out
        assert out.removesuffix("\n").rstrip("[") == shown.rstrip("[").removesuffix("\n")


@given(
    st.lists(st.text(st.sampled_from("\x1b[]0;1mP\\\x07\x9b\x9d\x9c \n\r\x7fé#c")), max_size=12).filter(
        lambda pieces: sum(map(len, pieces)) < LONGEST_SEQUENCE
    )
)
def test_pieces_give_what_the_whole_gives(pieces: list[str]) -> None:
    cleaner = Cleaner()
    shown = "".join(map(cleaner.feed, pieces)) + cleaner.flush()
    assert shown == clean("".join(pieces))
    assert not any((ord(sign) < 32 and sign not in "\n\t") or 127 <= ord(sign) < 160 for sign in shown)


def test_a_sequence_without_end_does_not_swallow_the_answer() -> None:
    cleaner = Cleaner()
    shown = cleaner.feed("\x1b]0;") + "".join(cleaner.feed("word ") for _ in range(100))
    assert len(shown) > 200
    assert "\x1b" not in shown


@given(st.text())
def test_ordinary_text_is_untouched(text: str) -> None:
    printable = "".join(sign for sign in text if sign.isprintable() or sign in "\n\t")
    assert clean(printable) == printable
    assert without_surrogates(printable) == printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "env", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_only_where_wanted(
    terminal: bool, env: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    assert ("\x1b" in dim("x", stream)) == coloured


@pytest.mark.parametrize(
    ("encoding", "answer", "stats"),
    [
        ("ascii", b"caf? ? ?\n", b"3 tok | 20.0 tok/s | tau 2.00 (1 cycles)"),
        ("cp1252", b"caf\xe9 ? ?\n", b"3 tok | 20.0 tok/s | tau 2.00 (1 cycles)"),
        ("utf-8", "café 好 😀\n".encode(), "3 tok · 20.0 tok/s · τ 2.00 (1 cycles)".encode()),
    ],
)
@pytest.mark.parametrize("argv", [("generate", "-p", "q"), ()])
def test_encodings_that_lack_a_sign(encoding: str, answer: bytes, stats: bytes, argv: tuple[str, ...]) -> None:
    ran = run_process(
        *argv, stdin=b"" if argv else b"q\n", env={"PYTHONIOENCODING": encoding},
        pieces=["café 好", " 😀"], notes=["note é 好"],
    )  # fmt: skip
    assert ran.returncode == 0
    assert ran.stdout == answer
    assert stats in ran.stderr
    assert b"\x1b" not in ran.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_needs_no_encoding(encoding: str) -> None:
    import json

    ran = run_process("generate", "-p", "q", "--json", env={"PYTHONIOENCODING": encoding}, pieces=["好 😀 é"])
    assert json.loads(ran.stdout.decode(encoding))["text"] == "好 😀 é"


def test_utf8_piped_into_an_ascii_input() -> None:
    ran = run_process("generate", stdin="好".encode(), env={"PYTHONIOENCODING": "ascii"}, echo=True)
    assert rb"\u597d" in ran.stdout
