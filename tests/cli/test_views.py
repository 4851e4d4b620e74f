from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.text import Text
from syrupy.assertion import SnapshotAssertion

from eagle_chat.cli import compare, live, meters, stats, steps, tree_view
from eagle_chat.cli.markdown import print_answer
from eagle_chat.cli.theme import Theme, console
from eagle_chat.cli.wrapping import Wrapped
from eagle_chat.core.events import Committed, Drafted, DraftNode, Verified, VerifiedNode
from eagle_chat.core.metrics import Metrics, same_text
from tests.cli.views import COLOUR, PLAIN_ASCII, drawn, events, told, wrapped

THEMES = pytest.mark.parametrize("theme", [COLOUR, PLAIN_ASCII], ids=["colour", "ascii"])


@THEMES
@pytest.mark.parametrize("size", [(60, 14), (80, 23), (120, 20), (40, 5), (20, 2)], ids=str)
def test_the_live_picture(snapshot: SnapshotAssertion, theme: Theme, size: tuple[int, int]) -> None:
    progress = told(events()[:-1])
    rows = live.frame(progress, wrapped(progress, size[0], theme), *size, theme)
    assert drawn(rows, theme, size[0]) == snapshot


@THEMES
@pytest.mark.parametrize("at", range(4))
def test_the_steps_of_a_cycle(snapshot: SnapshotAssertion, theme: Theme, at: int) -> None:
    cycle = told(events()).cycle
    assert cycle is not None
    assert drawn(steps.panel(cycle, at, 70, 20, theme), theme, 70) == snapshot


@THEMES
def test_the_tables(snapshot: SnapshotAssertion, theme: Theme) -> None:
    metrics, plain = told(events()).metrics, told(events(accepted=0)).metrics
    rows = [*stats.table(metrics, theme), Text(""), *compare.table(plain, metrics, theme)]
    assert drawn(rows, theme, 100) == snapshot


@THEMES
def test_before_the_first_cycle(snapshot: SnapshotAssertion, theme: Theme) -> None:
    for count in (0, 1, 2):
        progress = told(events()[:count])
        rows = live.frame(progress, wrapped(progress, 60, theme), 60, 10, theme)
        assert drawn(rows, theme, 60) == snapshot


@pytest.mark.parametrize("width", [8, 20, 33, 60, 99, 100, 140, 250])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 9, 14, 59])
@pytest.mark.parametrize("step", [None, 0, 3])
def test_a_picture_is_never_larger_than_the_screen(width: int, height: int, step: int | None) -> None:
    progress = told(events(["好" * 40, "word " * 30, "\n\nx" * 70, "👩‍💻 é"], accepted=2, repeat=3))
    for theme in (COLOUR, PLAIN_ASCII):
        rows = live.frame(progress, wrapped(progress, width, theme), width, height, theme, step=step, footer="foot")
        assert 0 < len(rows) <= height
        assert max(row.cell_len for row in rows) < width
        assert all("\n" not in row.plain for row in rows)


def test_marks_need_no_colour() -> None:
    cycle = told(events()).cycle
    assert cycle is not None
    for theme in (COLOUR, PLAIN_ASCII):
        marks = theme.signs.marks
        assert len(set(marks.values())) == len(marks)
        text = "\n".join(
            row.plain for row in tree_view.rows(tree_view.judged(cycle.drafted, cycle.verified), 80, 20, theme)
        )
        assert all(marks[name] in text for name in ("accepted", "rejected", "unreached", "bonus"))


def test_drafted_tokens_are_told_apart_by_their_index() -> None:
    """Where every token reads the same, exactly the accepted ones are marked."""
    committed = Committed(
        1, [5] * 5, ["draft", "draft", "draft", "draft", "target"], "a a a a a", 8, 4, {"verify": 1.0},
        pieces=["a", " a", " a", " a", " a"],
    )  # fmt: skip
    progress = told([Committed(0, [5], ["target"], "a ", 0, 0, {"prefill": 1.0}, pieces=["a "]), committed])
    lines = Wrapped(40, COLOUR)
    for text, origin in progress.pieces:
        lines.feed(text, origin)
    (row,) = lines.tail(1)
    marked = [row.plain[span.start : span.end] for span in row.spans if span.style == COLOUR.style("draft")]
    assert row.plain == "a a a a a a"
    assert "".join(marked).count("a") == 4
    assert marked == ["a a a a"]


def tree(*nodes: tuple[int, str, float]) -> Drafted:
    made = [DraftNode(0, -1, 0, 1, "root", 1.0, 0.0, 0, "kept", 0)]
    for place, (parent, text, value) in enumerate(nodes, start=1):
        made.append(DraftNode(place, parent, made[parent].depth + 1, 1, text, 0.5, value, 0, "kept", place))
    return Drafted(1, made)


def walked(drafted: Drafted, *path: int) -> Verified:
    nodes = []
    for node in drafted.nodes:
        status = "accepted" if node.slot in path else "rejected" if node.parent in path else "unreached"
        nodes.append(VerifiedNode(node.slot, 0.5, status))  # type: ignore[arg-type]
    return Verified(1, nodes, list(path), 9, "bonus")


def test_the_most_valuable_paths_come_first_and_the_rest_is_counted() -> None:
    drafted = tree((0, "low", -5.0), (0, "high", -1.0), (0, "taken", -9.0), (2, "child", -2.0))
    root = tree_view.judged(drafted, walked(drafted, 0, 3))
    rows = [row.plain for row in tree_view.rows(root, 80, 9, COLOUR)]
    assert [word for row in rows for word in ("taken", "high", "low") if word in row] == ["taken", "high", "low"]
    assert "★bonus" in rows[0]
    rows = [row.plain for row in tree_view.rows(root, 80, 2, COLOUR)]
    assert rows == ["▸root─✓taken .50─★bonus", "… 3 more nodes"]
    assert [row.plain for row in tree_view.rows(root, 80, 1, COLOUR)] == ["▸root─✓taken .50─★bonus"]
    assert tree_view.rows(root, 80, 0, COLOUR) == []


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        (":smile:", ":smile:"),
        ("\n\n", "↵↵"),
        ("\t", "→"),
        ("    ", "␣×4"),
        ("", "␣"),
        ("\x1b[31mred", "red"),
        ("好好好好好好好好", "好好好好好好…"),
    ],
)
def test_labels(text: str, label: str) -> None:
    drafted = tree((0, text, -1.0))
    rows = tree_view.rows(tree_view.judged(drafted, walked(drafted, 0, 1)), 80, 5, COLOUR)
    assert rows[0].plain == f"▸root─✓{label} .50─★bonus"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("a b c", 5, ["a b c"]),
        ("word wrapped here", 8, ["word", "wrapped", "here"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("  two\n\n    four", 20, ["  two", "", "    four"]),
        ("a\tb", 20, ["a   b"]),
        ("好好好", 5, ["好好", "好"]),
        ("abcd efgh", 4, ["abcd", "efgh"]),
        ("end\n", 4, ["end", ""]),
    ],
)
def test_wrapping(text: str, width: int, lines: list[str]) -> None:
    for pieces in ([text], list(text)):
        made = Wrapped(width, COLOUR)
        for piece in pieces:
            made.feed(piece, "")
        assert [row.plain.rstrip() for row in made.tail(99)] == [line.rstrip() for line in lines]
        assert all(cell_len(line) <= width for line in lines)


def test_a_sparkline() -> None:
    assert meters.curve([0, 1, 2, 4], COLOUR) == "▁▃▅█"
    assert meters.curve([], COLOUR) == ""


AS_WRITTEN = [
    "[INST] hi [/INST]", "a[i] = b[j] and [bold]x", ":smile:", "  leading", "a , b", "<think>x</think> List<String>",
    "one\ntwo\n\nthree", "&amp; &lt;", "[ref]: http://x", "![alt](http://x)", "    code\n    more",
]  # fmt: skip


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_text_without_markdown_stays_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(console(), text, COLOUR)
    shown = [line.strip() if "code" in text else line.rstrip() for line in capsys.readouterr().out.splitlines()]
    expected = [line.strip() if "code" in text else line for line in text.splitlines()]
    if text.startswith("!"):
        assert shown == ["!alt (http://x)"]
    else:
        assert [line for line in shown if line] == [line for line in expected if line]


def test_markdown_is_rendered_and_data_in_it_stays(capsys: pytest.CaptureFixture[str]) -> None:
    text = "**bold** <b>hi</b> [x](http://y)\n\n```python\ndef f(a , b):\n    return '[bold]'\n```\n\n- one\n- two\n"
    print_answer(console(), text, COLOUR)
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "bold <b>hi</b> x (http://y)"
    assert [line.strip(" ") for line in shown if "def" in line or "return" in line] == [
        "def f(a , b):", "return '[bold]'",
    ]  # fmt: skip
    assert [line for line in shown if "•" in line] == [" • one", " • two"]
    print_answer(console(), text, PLAIN_ASCII)
    assert capsys.readouterr().out.rstrip("\n") == text.rstrip("\n")


def test_the_text_check_of_a_comparison() -> None:
    def run(tokens: list[int], reason: str = "stop", dtype: str = "float32") -> Metrics:
        metrics = told(events()).metrics
        metrics.token_ids = tokens
        assert metrics.started is not None
        object.__setattr__(metrics.started, "dtype", dtype)
        object.__setattr__(metrics.finished, "reason", reason)
        return metrics

    assert same_text(run([1, 2]), run([1, 2])) == (True, "same text: yes, token for token (2 tokens)")
    same, said = same_text(run([1, 2, 3]), run([1, 5, 3], dtype="bfloat16"))
    assert not same
    assert "they part at token 2 of 3: in bfloat16 two best tokens may tie" in said
    assert same_text(run([1, 2, 3]), run([1, 2]))[0] is False
    same, said = same_text(run([1, 2, 3]), run([1, 2], "cancelled"))
    assert (same, said) == (True, "same text: yes, token for token (2 tokens until the interruption)")
