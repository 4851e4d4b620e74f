"""The document for people. Names and categories come from files: they are shown as text and never read as markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle_chat.bench.figures import FEWEST
from eagle_chat.bench.quantised import quantisation_line
from eagle_chat.bench.report import head_letters, unlike_plain
from eagle_chat.core.events import STAGES

PIPE_WIDTH = 110
"""Columns where stdout is not a terminal."""
MOST_LENGTHS = 7
"""Accepted lengths with a column of their own; longer ones are added up in the last."""
MEDIAN = f"* median over the questions, with an interval from {FEWEST} of them on; tok/s, tau and c are over all cycles"


def show(card: RenderableType, console: Console | None = None) -> None:
    """Print to stdout, as wide as the terminal or `PIPE_WIDTH`."""
    console = console or Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(card)


def shown(value: object) -> Text:
    """A value as plain text in one line, without anything that a terminal would obey."""
    return Text("".join(sign if sign.isprintable() else " " for sign in str(value)))


def make_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], ascii_only: bool) -> Group:
    """A table under its title; the first column is left-aligned text, the others are figures."""
    edges = box.ASCII if ascii_only else box.SIMPLE_HEAD
    table = Table(box=edges, pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(shown(name), justify="left" if index == 0 else "right", no_wrap=index > 0)
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    # A title of the table itself would be broken to the table's width.
    heading_line = shown(title)
    heading_line.stylize("bold")
    return Group(heading_line, table)


def bench_card(value: dict[str, Any], ascii_only: bool = False) -> Group:
    """Everything of a benchmark's document; `ascii_only` where the terminal lacks τ and α."""
    parts: list[RenderableType] = [heading(value), _question_line(value), Text()]
    for temperature in dict.fromkeys(run["temperature"] for run in value["runs"]):
        runs = [run for run in value["runs"] if run["temperature"] == temperature]
        parts += [_speed_table(runs, ascii_only), _cost_table(runs, ascii_only), _length_table(runs, ascii_only)]
        parts.append(_category_table(runs, ascii_only))
    if value["runs"]:
        parts.append(Text(MEDIAN))
    letters = dict(zip(value["heads"], head_letters(value["heads"]), strict=True))
    parts += _peer_parts(value["peers"], ascii_only) if "peers" in value else []
    parts += [_alpha_table(table, letters, ascii_only) for table in value.get("alpha", [])]
    parts += [_calibration_table(table, letters, ascii_only) for table in value.get("calibration", [])]
    if "quantisation" in value:
        parts += [shown(quantisation_line(value["quantisation"])), Text()]
    parts += [shown(f"note: {note}") for note in value["notes"]]
    parts += [
        Text(f"FAULT: in float32 the greedy text of {name} differs from plain decoding; eagle-chat verify shows where")
        for name in unlike_plain(value)
    ]
    if value["partial"]:
        parts.append(Text("PARTIAL: stopped before all questions were answered."))
    return Group(*parts)


def heading(value: dict[str, Any]) -> Text:
    """Target, head and machine in two lines; a line more for each of several heads."""
    machine, heads = value["machine"], value.get("heads", [])
    device = machine["device_name"] or machine["cpu"]
    drafts = f"{len(heads)} heads" if len(heads) > 1 else value["head"] or "no head"
    lines = [f"{value['target']} + {drafts}: {machine['dtype']} on {machine['device']}"]
    lines += [f"{letter} = {name}" for letter, name in zip(head_letters(heads), heads, strict=True) if letter]
    return Text("\n").join(map(shown, [*lines, f"{device}, {_threads(machine['threads'])}"]))


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _question_line(value: dict[str, Any]) -> Text:
    questions = value["questions"]
    seeds = sorted({run["seed"] for run in value["runs"]})
    seed = f", seed {seeds[0]}" if seeds else ""
    counts = f"{questions['answered']} of {questions['asked']} questions" if value["runs"] else "no comparison"
    return shown(f"{counts} ({questions['source']}), up to {questions['max_new_tokens']} tokens{seed}")


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def _interval(ratio: dict[str, Any]) -> str:
    bounds = ratio["speedup_interval"]
    return f"{bounds[0]:.2f}-{bounds[1]:.2f}" if bounds else "-"


def _speed_table(runs: list[dict[str, Any]], ascii_only: bool) -> Group:
    rule = f", {runs[0]['verify']}" if runs[0]["temperature"] else ""
    rows = []
    for run in runs:
        prefill, same = run["prefill"], run["same_text"]
        memory = run["peak_memory_bytes"]
        rows.append(
            (
                run["label"],
                _number(run["tokens_per_second"], ".1f"),
                _number(run["speedup"]),
                _interval(run),
                _number(run["tau"]),
                _number(run["c"] and run["c"]["total"]),
                _number(prefill["tokens"] / prefill["seconds"] if prefill["seconds"] else None, ".0f"),
                "-" if memory is None else f"{memory / 2**20:.0f}",
                f"{same['equal']}/{same['of']}" if same else "-",
            )
        )
    tau = "tau" if ascii_only else "τ"
    columns = ("run", "tok/s", "speed-up*", "95 %", tau, "c", "prefill tok/s", "peak MiB", "= plain")
    return make_table(f"Temperature {runs[0]['temperature']:g}{rule}", columns, rows, ascii_only)


def _cost_table(runs: list[dict[str, Any]], ascii_only: bool) -> Group:
    """c by stage: what each takes more than in a plain step, in plain steps."""
    rows = [
        (
            run["label"],
            _number(run["step_seconds"] and 1000 * run["step_seconds"], ".1f"),
            *(_number(run["c"] and run["c"][stage], "+.2f") for stage in STAGES),
        )
        for run in runs
    ]
    return make_table("Where c comes from, in plain steps", ("run", "ms a cycle", *STAGES), rows, ascii_only)


def _length_table(runs: list[dict[str, Any]], ascii_only: bool) -> Group:
    longest = max((int(length) for run in runs for length in run["accept_lengths"]), default=0)
    columns = min(longest + 1, MOST_LENGTHS + 1)
    rows = []
    for run in runs:
        counts = [0] * columns
        for length, count in run["accept_lengths"].items():
            counts[min(int(length), columns - 1)] += count
        total = sum(counts)
        rows.append((run["label"], *(f"{count / total:.0%}" if total else "-" for count in counts)))
    names = [str(length) for length in range(columns)]
    names[-1] += "+" if longest >= columns else ""
    return make_table("Accepted draft tokens, share of cycles", ("run", *names), rows, ascii_only)


def _category_table(runs: list[dict[str, Any]], ascii_only: bool) -> Group:
    drafted = [run for run in runs if run["policy"] != "plain"]
    plain = next(run for run in runs if run["policy"] == "plain")
    tau = "tau" if ascii_only else "τ"
    rows = []
    for category, base in plain["by_category"].items():
        cells = [run["by_category"][category] for run in drafted]
        step = _number(base["step_seconds"] and 1000 * base["step_seconds"], ".1f")
        figures = (
            f"{_number(cell['speedup'])} ({tau} {_number(cell['tau'])}, c {_number(cell['c'] and cell['c']['total'])})"
            for cell in cells
        )
        rows.append((category, base["questions"], step, *figures))
    columns = ("category", "n", "plain ms", *(run["label"] for run in drafted))
    return make_table(f"Speed-up*, {tau} and c by category", columns, rows, ascii_only)


def _peer_parts(peers: dict[str, Any], ascii_only: bool) -> list[RenderableType]:
    """All engines in one table, who was left out, and how our best stands against theirs."""
    rows = [
        (
            one["name"],
            one["format"] or "",
            _number(one["tokens_per_second"], ".1f"),
            _number(one["speedup"]),
            _interval(one),
            _number(one["tau"]),
            _number(one["end_to_end"], ".1f"),
            _number(one["first_seconds"], ".2f"),
            f"{one['same_text']['equal']}/{one['same_text']['of']}",
        )
        for one in peers["engines"]
    ]
    tau = "tau" if ascii_only else "τ"
    columns = ("engine", "weights", "tok/s", "x plain", "95 %", tau, "with prefill", "first s", "= plain")
    parts: list[RenderableType] = [make_table("Beside other engines, greedy", columns, rows, ascii_only)]
    for one in peers["engines"]:
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
        parts += [shown(f"{one['name']}: {versions}")] if versions else []
    parts += [shown(f"skipped: {one['name']}: {one['reason']}") for one in peers["skipped"]]
    best = peers["best"]
    if best is not None:
        interval = f" (95 %: {_interval(best)})" if best["speedup_interval"] else ""
        times = f"{_number(best['speedup'])} times as fast as {best['theirs']}{interval}"
        parts += [Text(), shown(f"{best['ours']}: {times}")]
    return parts


def _of_head(table: dict[str, Any], letters: dict[str, str]) -> str:
    letter = letters.get(table["head"], "")
    return f"{letter}: " if letter else ""


def _alpha_table(table: dict[str, Any], letters: dict[str, str], ascii_only: bool) -> Group:
    alpha = "alpha" if ascii_only else "α"
    rows = [
        (
            f"{row['n']}-{alpha}",
            f"{row['rate']:.3f}",
            f"{row['interval'][0]:.3f}-{row['interval'][1]:.3f}",
            f"{row['accepted']}/{row['judged']}",
        )
        for row in table["alpha"]
    ]
    title = f"n-{alpha} in chain mode, temperature {table['temperature']:g}, {table['questions']} questions"
    title = _of_head(table, letters) + title
    return make_table(title, ("", "rate", "95 %", "accepted"), rows, ascii_only)


def _calibration_table(table: dict[str, Any], letters: dict[str, str], ascii_only: bool) -> Group:
    rows = [
        (
            f"{row['depth']}: {one['low']:.1f}-{one['high']:.1f}",
            one["count"],
            f"{one['confidence']:.3f}",
            f"{one['rate']:.3f}",
            f"{row['error']:.3f}" if one is row["bins"][0] else "",
        )
        for row in table["depths"]
        for one in row["bins"]
    ]
    title = f"Draft confidence against acceptance, temperature {table['temperature']:g}, {table['questions']} questions"
    title = _of_head(table, letters) + title
    columns = ("depth: confidence", "tokens", "mean confidence", "accepted", "error")
    return make_table(title, columns, rows, ascii_only)
