"""Events -> what the explorer's page reads: JSON-ready, compact, bounded.

A tree of EAGLE-2's size considers some 700 nodes in each cycle, of which 60 are kept. So nodes stand in columns, a
token's text stands once per run, and probabilities are whole numbers: `-ln(probability)` in steps of 1e-4.

A page is `{"version", "runs", "costs", "plain"}`. A run: `question`, `about` (the header), `table` (`ids`, `texts` of
the tokens), `cycles`, `end`. A cycle: `n`, `out` (token ids), `pieces`, `origins` ("d" or "t" a token), `accepted`,
`levels` ("1" or "0"), `seconds`, `num_nodes`, and where the run was traced `tree`, of which `_tree` tells the columns.
Cycle 0 is the prefill.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Drafted, DraftNode, Event, Finished, Started, Verified
from eagle_chat.core.recording import Run

VERSION = 1
STEPS_PER_NAT = 10_000
LARGEST_LOG = 999_999
"""Of `-ln(probability)`, in steps: what is smaller than e^-100 is shown as that."""
MOST_RUNS, MOST_CYCLES, MOST_NODES, MOST_TEXT = 64, 20_000, 2_000_000, 8_000_000
"""What a page may hold in all: beyond it a browser would stall. Text in characters."""
LONGEST_TOKEN = 400
"""Characters of a drafted token's text that are kept; the longest real ones have about 130."""
_ABOUT = ("target", "head", "policy", "tree", "sampling", "device", "dtype", "versions", "notes")


def page_data(events: Iterable[Event], costs: Mapping[int, float] | None = None) -> dict[str, Any]:
    """What a page of these events shows: one run, or several one after the other, each from its `Started` on.

    `costs`: measured seconds of a target pass by its number of nodes, where they are known.
    UserError where the events are more than a page can hold.
    """
    runs: list[Run] = []
    for event in events:
        if isinstance(event, Started) or not runs:
            runs.append(Run())
        runs[-1].events.append(event)
    return runs_data(runs, costs)


def runs_data(
    runs: Iterable[Run], costs: Mapping[int, float] | None = None, plain: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """`page_data` of a recording's runs, which know their questions. `plain`: measured seconds of a plain step by
    stage, where they are known."""
    runs = list(runs)
    _check(runs)
    measured = {str(nodes): _rounded(seconds) for nodes, seconds in sorted((costs or {}).items())}
    step = {stage: _rounded(seconds) for stage, seconds in (plain or {}).items()}
    return {"version": VERSION, "runs": [_run(run) for run in runs], "costs": measured, "plain": step}


def cycle_data(
    committed: Committed, drafted: Drafted | None = None, verified: Verified | None = None
) -> dict[str, Any]:
    """One cycle by itself, with its own `table`: what a live view is told. Without a tree where it was not traced."""
    table = _Table()
    return {**_cycle(committed, drafted, verified, table), "table": table.value()}


def _check(runs: list[Run]) -> None:
    cycles = nodes = text = 0
    for event in itertools.chain.from_iterable(run.events for run in runs):
        if isinstance(event, Committed):
            cycles += 1
            text += len(event.text)
        elif isinstance(event, Drafted):
            nodes += len(event.nodes)
    for name, found, most in (
        ("answers", len(runs), MOST_RUNS),
        ("cycles", cycles, MOST_CYCLES),
        ("drafted nodes", nodes, MOST_NODES),
        ("characters", text, MOST_TEXT),
    ):
        if found > most:
            raise UserError(
                f"a page of at most {most:,} {name} expected, found {found:,}: record fewer answers in a file"
            )


class _Table:
    """Tokens by number: each (id, text) once."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, str], int] = {}

    def place(self, token_id: int, text: str) -> int:
        return self._places.setdefault((token_id, text[:LONGEST_TOKEN]), len(self._places))

    def value(self) -> dict[str, Any]:
        return {"ids": [token for token, _ in self._places], "texts": [text for _, text in self._places]}


def _run(run: Run) -> dict[str, Any]:
    table = _Table()
    cycles: list[dict[str, Any]] = []
    drafted: Drafted | None = None
    verified: Verified | None = None
    end: dict[str, Any] | None = None
    for event in run.events:
        if isinstance(event, Drafted):
            drafted, verified = event, None
        elif isinstance(event, Verified):
            verified = event
        elif isinstance(event, Committed):
            fits = drafted is not None and drafted.cycle == event.cycle
            cycles.append(_cycle(event, drafted if fits else None, verified if fits else None, table))
        elif isinstance(event, Finished):
            end = {"reason": event.reason, "text": event.text, "message": event.message}
    started = run.started
    about = {name: getattr(started, name) for name in _ABOUT} if started else {}
    about["prompt_tokens"] = started.prompt_tokens if started else 0
    return {"question": run.question, "about": about, "table": table.value(), "cycles": cycles, "end": end}


def _cycle(committed: Committed, drafted: Drafted | None, verified: Verified | None, table: _Table) -> dict[str, Any]:
    value: dict[str, Any] = {
        "n": committed.cycle,
        "out": committed.token_ids,
        "pieces": committed.pieces or [committed.text, *[""] * (len(committed.token_ids) - 1)],
        "origins": "".join(origin[0] for origin in committed.origins),
        "accepted": committed.accepted,
        "levels": "".join("01"[level] for level in committed.levels),
        "seconds": {stage: _rounded(seconds) for stage, seconds in committed.seconds.items()},
        "num_nodes": committed.num_nodes,
    }
    if drafted is not None and verified is not None and verified.cycle == committed.cycle:
        value["tree"] = _tree(drafted, verified, table)
    return value


def _tree(drafted: Drafted, verified: Verified, table: _Table) -> dict[str, Any]:
    """The columns. By node in the order drafted: `token` (place in the table); without the root, `parent` (run
    lengths: node, count, node, count ...), `q`. `kept`: node ids by slot. By slot: `p`, `status` ("a", "r", "u" for
    accepted, rejected, unreached). `choice`, `u`: pairs of slot and value. `rank` and `value` only where they are not
    what order and q say."""
    nodes = drafted.nodes
    parents = [(parent, len(list(group))) for parent, group in itertools.groupby(node.parent for node in nodes[1:])]
    judged = sorted(verified.nodes, key=lambda node: node.slot)
    tree: dict[str, Any] = {
        "token": [table.place(node.token_id, node.text) for node in nodes],
        "parent": list(itertools.chain.from_iterable(parents)),
        "q": [_steps(node.q) for node in nodes[1:]],
        "kept": [node.id for node in sorted((node for node in nodes if node.slot >= 0), key=lambda node: node.slot)],
        "p": [_steps(node.p) for node in judged],
        "status": "".join(node.status[0] for node in judged),
        "choice": [
            [node.slot, table.place(node.choice, node.choice_text or "")] for node in judged if node.choice is not None
        ],
        "u": [[node.slot, _rounded(node.u)] for node in judged if node.u is not None],
        "path": verified.path,
        "bonus": table.place(verified.bonus, verified.bonus_text),
    }
    if not _ranks_follow_order(nodes):
        tree["rank"] = [node.rank for node in nodes[1:]]
    if not _values_follow_q(nodes):
        tree["value"] = [
            round(-node.value * STEPS_PER_NAT) if math.isfinite(node.value) else None for node in nodes[1:]
        ]
    return tree


def _ranks_follow_order(nodes: list[DraftNode]) -> bool:
    seen = [0] * len(nodes)
    for node in nodes[1:]:
        if node.rank != seen[node.parent]:
            return False
        seen[node.parent] += 1
    return True


def _values_follow_q(nodes: list[DraftNode]) -> bool:
    return all(
        node.q > 0.0 and abs(nodes[node.parent].value + math.log(node.q) - node.value) < 1e-3 for node in nodes[1:]
    )


def _steps(probability: float) -> int | None:
    """`-ln(probability)` in steps; None where it is no number."""
    if not math.isfinite(probability):
        return None
    if probability <= 0.0:
        return LARGEST_LOG
    return min(max(round(-math.log(probability) * STEPS_PER_NAT), 0), LARGEST_LOG)


def _rounded(number: float) -> float | None:
    """Six significant digits, which is more than a clock is good for."""
    return float(f"{number:.6g}") if math.isfinite(number) else None
