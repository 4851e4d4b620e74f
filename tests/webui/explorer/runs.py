"""Runs to look at: recorded, made up to a size, and hostile."""

from __future__ import annotations

import random
from math import log
from pathlib import Path
from typing import Any

from eagle_chat.core import recording
from eagle_chat.core.assets import asset_path
from eagle_chat.core.events import Committed, Drafted, DraftNode, Event, Finished, Started, Verified, VerifiedNode
from eagle_chat.core.recording import Run
from eagle_chat.webui.explorer import cycle_data, html_page, runs_data

HOSTILE = "<think>x</think> List<String> <b>hi</b> <script>alert(1)</script>"
WORDS = [" the", " a", "\n", "def", " return", "(x)", " 你好", "😀", " and", "    ", "`", "<b>"]


def recorded(name: str) -> list[Run]:
    return recording.read(asset_path("recordings", f"{name}.jsonl"))


def started(policy: str = "dynamic", nodes: int = 8, head: str | None = "fake") -> Started:
    tree = {"policy": policy, "depth": 3, "top_k": 3, "total_tokens": nodes}
    sampling = {"temperature": 0.0, "seed": 7, "verify": "coupled"}
    return Started(11, 0, "tiny", head, policy, tree, sampling, "cpu", "float32", {})


def drawn_tree(cycle: int, depth: int, top_k: int, total: int, chance: random.Random) -> tuple[Drafted, Verified]:
    """A dynamic tree as the policy makes it, its path the favourite one as far as it was kept, at most two deep."""
    nodes = [DraftNode(0, -1, 0, 40, " root", 1.0, 0.0, 0, "kept", 0)]
    newest = [nodes[0]]
    for level in range(1, depth + 1):
        extended = sorted(newest, key=lambda node: -node.value)[:top_k]
        newest = []
        for parent in sorted(extended, key=lambda node: node.id):
            for rank in range(top_k):
                q = (0.6 if rank == 0 else 0.3 / rank) * chance.uniform(0.5, 1.0)
                token = chance.randrange(49_000)
                text = WORDS[token % len(WORDS)] + ("" if token % 3 else str(token % 97))
                node = DraftNode(
                    len(nodes), parent.id, level, token, text, q, parent.value + log(q), rank, "expanded", -1
                )
                nodes.append(node)
                newest.append(node)
    best = sorted(nodes[1:], key=lambda node: (-node.value, node.id))[: total - 1]
    slots = {node: slot for slot, node in enumerate([0, *sorted(node.id for node in best)])}
    nodes = [DraftNode(**{**vars(n), "slot": slots[n.id], "stage": "kept"}) if n.id in slots else n for n in nodes]
    path = [0]
    while len(path) < 3:
        child = next((n for n in nodes if n.parent == path[-1] and n.slot >= 0), None)
        if child is None:
            break
        path.append(child.id)
    judged = [
        VerifiedNode(
            slots[node.id],
            chance.random(),
            "accepted" if node.id in path else "rejected" if node.parent in path else "unreached",
        )
        for node in nodes
        if node.slot >= 0
    ]
    return Drafted(cycle, nodes), Verified(cycle, judged, [slots[node] for node in path], 99, " bonus")


def made_up(cycles: int, depth: int = 3, top_k: int = 3, total: int = 8, seed: int = 0, question: str = "Why?") -> Run:
    """A run of so many cycles with such trees."""
    chance = random.Random(seed)
    events: list[Event] = [
        started(nodes=total),
        Committed(0, [40], ["target"], "It", 0, 0, {"prefill": 0.4}, pieces=["It"]),
    ]
    for cycle in range(1, cycles + 1):
        drafted, verified = drawn_tree(cycle, depth, top_k, total, chance)
        by_slot = {node.slot: node for node in drafted.nodes if node.slot >= 0}
        taken = [by_slot[slot] for slot in verified.path[1:]]
        pieces = [*(node.text for node in taken), " bonus"]
        seconds = {"draft": 0.02, "verify": 0.07, "sample": 0.004, "commit": 0.004, "other": 0.002}
        levels = [True] * len(taken) + ([False] if any(n.parent == taken[-1].id for n in by_slot.values()) else [])
        origins = ["draft"] * len(taken) + ["target"]
        tokens = [*(node.token_id for node in taken), 99]
        events += [drafted, verified]
        events.append(
            Committed(cycle, tokens, origins, "".join(pieces), total, len(taken), seconds, levels, pieces)  # type: ignore[arg-type]
        )
    events.append(Finished("stop", "", cycles, 1 + 3 * cycles))
    return Run(question, events)


def cut(cycles: int, **shape: int) -> Run:
    """The same with one cycle more, for which the budget left a single token: its tree has one node."""
    run = made_up(cycles, **shape)
    last = cycles + 1
    seconds = {"draft": 0.0, "verify": 0.03, "sample": 0.004, "commit": 0.004, "other": 0.002}
    run.events[-1:] = [
        Drafted(last, [DraftNode(0, -1, 0, 99, " bonus", 1.0, 0.0, 0, "kept", 0)]),
        Verified(last, [VerifiedNode(0, 1.0, "accepted")], [0], 98, " end"),
        Committed(last, [98], ["target"], " end", 1, 0, seconds, [], [" end"]),
        Finished("length", "", last, 2 + 3 * cycles),
    ]
    return run


def cycles_of(run: Run) -> list[dict[str, Any]]:
    """The cycles as a live view is told of them."""
    cycles: list[dict[str, Any]] = []
    drafted = verified = None
    for event in run.events:
        if isinstance(event, Drafted):
            drafted = event
        elif isinstance(event, Verified):
            verified = event
        elif isinstance(event, Committed):
            cycles.append(cycle_data(event, drafted, verified))
    return cycles


def plain(tokens: list[int], question: str = "Why?") -> Run:
    """Plain decoding of these tokens."""
    events: list[Event] = [started("none", 1, None)]
    for cycle, token in enumerate(tokens):
        seconds = {"verify": 0.03} if cycle else {"prefill": 0.4}
        events.append(Committed(cycle, [token], ["target"], f" {token}", int(cycle > 0), 0, seconds))
    events.append(Finished("stop", "", len(tokens) - 1, len(tokens)))
    return Run(question, events)


def hostile() -> Run:
    """Every text that a model or a person could have written is markup, and more."""
    nasty = [
        HOSTILE,
        "</script><img src=x onerror=alert(2)>",
        "\u202e\x00\x1b[31m",
        "]]>&lt;&#60;",
        "\ud800",
        "'\"`${1}",
    ]
    nodes = [DraftNode(0, -1, 0, 1, HOSTILE, 1.0, 0.0, 0, "kept", 0)]
    for place, text in enumerate(nasty, start=1):
        nodes.append(DraftNode(place, 0, 1, place, text, 0.1, log(0.1), place - 1, "kept", place))
    judged = [VerifiedNode(0, 1.0, "accepted", 1, HOSTILE)]
    judged += [VerifiedNode(place, 0.1, "rejected") for place in range(1, len(nasty) + 1)]
    first = started()
    first = Started(**{**vars(first), "target": HOSTILE, "head": "<img src=x onerror=alert(3)>"})
    return Run(
        HOSTILE,
        [
            first,
            Committed(0, [1], ["target"], HOSTILE, 0, 0, {"prefill": 0.1}, pieces=[HOSTILE]),
            Drafted(1, nodes),
            Verified(1, judged, [0], 7, HOSTILE),
            Committed(1, [7], ["target"], HOSTILE, 7, 0, {"verify": 0.1}, [False], [HOSTILE]),
            Finished("stop", HOSTILE, 1, 2),
        ],
    )


def write(folder: Path, *runs: Run, name: str = "page.html") -> str:
    """The page of the runs as a file; its address."""
    path = folder / name
    path.write_text(html_page(runs_data(runs)), encoding="utf-8")
    return path.as_uri()
