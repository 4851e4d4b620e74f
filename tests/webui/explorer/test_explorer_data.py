from __future__ import annotations

import json
from itertools import chain, repeat
from math import exp, inf, nan
from typing import Any

import pytest

from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Drafted, Started, Verified
from eagle_chat.webui.explorer import cycle_data, data, explorer_assets, html_page, page_data, runs_data
from eagle_chat.webui.explorer.page import SCRIPTS
from tests.webui.explorer.runs import hostile, made_up, plain, recorded, started


def unpacked(tree: dict[str, Any], table: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns of a tree as nodes again."""
    pairs = zip(tree["parent"][::2], tree["parent"][1::2], strict=True)
    parents = [-1, *chain.from_iterable(repeat(parent, count) for parent, count in pairs)]
    slots = {node: slot for slot, node in enumerate(tree["kept"])}
    return [
        {
            "parent": parent,
            "text": table["texts"][tree["token"][node]],
            "token_id": table["ids"][tree["token"][node]],
            "q": exp(-tree["q"][node - 1] / data.STEPS_PER_NAT) if node else 1.0,
            "slot": slots.get(node, -1),
        }
        for node, parent in enumerate(parents)
    ]


@pytest.mark.parametrize("name", ["demo", "code", "sampled"])
def test_every_node_of_a_recording_is_in_the_page(name: str) -> None:
    for run in recorded(name):
        (packed,) = page_data(run.events)["runs"]
        drafted = [event for event in run.events if isinstance(event, Drafted)]
        verified = [event for event in run.events if isinstance(event, Verified)]
        trees = [cycle["tree"] for cycle in packed["cycles"] if "tree" in cycle]
        assert len(trees) == len(drafted)
        for tree, drawn, judged in zip(trees, drafted, verified, strict=True):
            nodes = unpacked(tree, packed["table"])
            assert [(n["parent"], n["text"], n["token_id"], n["slot"]) for n in nodes] == [
                (n.parent, n.text, n.token_id, n.slot) for n in drawn.nodes
            ]
            assert [n["q"] for n in nodes] == pytest.approx([n.q for n in drawn.nodes], rel=1e-4, abs=1e-9)
            by_slot = sorted(judged.nodes, key=lambda node: node.slot)
            assert tree["status"] == "".join(node.status[0] for node in by_slot)
            assert tree["path"] == judged.path
        # Ranks and values follow from order and q, unless the noise of the draws had a say.
        told = [tree for tree in trees if {"rank", "value"} & set(tree)]
        assert bool(told) == (name == "sampled" and bool(trees))


def test_the_text_and_its_origins_are_those_of_the_run() -> None:
    (run,) = recorded("demo")
    (packed,) = page_data(run.events)["runs"]
    committed = [event for event in run.events if isinstance(event, Committed)]
    assert "".join(chain.from_iterable(c["pieces"] for c in packed["cycles"])) == "".join(e.text for e in committed)
    assert [c["out"] for c in packed["cycles"]] == [e.token_ids for e in committed]
    assert "".join(c["origins"] for c in packed["cycles"]) == "".join(o[0] for e in committed for o in e.origins)


def test_ranks_and_values_that_do_not_follow_are_told() -> None:
    run = made_up(1)
    drafted = next(event for event in run.events if isinstance(event, Drafted))
    drafted.nodes[1:3] = [
        type(node)(**{**vars(node), "rank": 5 - node.rank, "value": -1.5}) for node in drafted.nodes[1:3]
    ]
    (packed,) = runs_data([run])["runs"]
    tree = packed["cycles"][1]["tree"]
    assert tree["rank"][:2] == [5, 4]
    assert tree["value"][:2] == [15_000, 15_000]


def test_a_cycle_by_itself_is_that_of_the_page() -> None:
    run = made_up(2)
    drafted, verified, committed = run.events[2:5]
    assert isinstance(committed, Committed)
    assert isinstance(drafted, Drafted)
    assert isinstance(verified, Verified)
    alone = cycle_data(committed, drafted, verified)
    table = alone.pop("table")
    (packed,) = runs_data([run])["runs"]
    whole = packed["cycles"][1]
    assert unpacked(alone["tree"], table) == unpacked(whole["tree"], packed["table"])
    assert {**alone, "tree": None} == {**whole, "tree": None}
    assert "tree" not in cycle_data(committed)


def test_events_without_a_question_or_a_start_are_a_run() -> None:
    events = [*made_up(1).events, *plain([1, 2]).events]
    assert [len(run["cycles"]) for run in page_data(events)["runs"]] == [2, 2]
    assert page_data(events[1:3])["runs"][0]["about"] == {"prompt_tokens": 0}
    assert page_data([])["runs"] == []
    assert page_data(events, costs={8: 0.25, 1: 0.1})["costs"] == {"1": 0.1, "8": 0.25}


@pytest.mark.parametrize("number", [nan, inf, 0.0, -1.0, 1e-300, 2.0])
def test_no_number_breaks_the_page(number: float) -> None:
    run = made_up(1)
    drafted = next(event for event in run.events if isinstance(event, Drafted))
    verified = next(event for event in run.events if isinstance(event, Verified))
    drafted.nodes[1] = type(drafted.nodes[1])(**{**vars(drafted.nodes[1]), "q": number, "value": number})
    verified.nodes[1] = type(verified.nodes[1])(**{**vars(verified.nodes[1]), "p": number})
    assert json.loads(json.dumps(runs_data([run]), allow_nan=False))


def test_more_than_a_page_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in [
        ("MOST_RUNS", "answers"), ("MOST_CYCLES", "cycles"),
        ("MOST_NODES", "drafted nodes"), ("MOST_TEXT", "characters"),
    ]:  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(data, name, 0)
            with pytest.raises(UserError, match=f"at most 0 {said} expected, found"):
                runs_data([made_up(2)])


def test_a_token_of_any_length_is_kept_short() -> None:
    run = made_up(1)
    drafted = next(event for event in run.events if isinstance(event, Drafted))
    drafted.nodes[1] = type(drafted.nodes[1])(**{**vars(drafted.nodes[1]), "text": "x" * 10**6})
    assert len(json.dumps(runs_data([run]))) < 10_000


def test_nothing_in_the_data_can_end_its_block() -> None:
    page = html_page(runs_data([hostile()]), title="<i>&")
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "alert(1)</" not in page
    assert "<title>&lt;i&gt;&amp;</title>" in page
    page.encode("utf-8")
    block = page.split('id="explorer-data">')[1].split("</script>")[0]
    assert json.loads(block) == json.loads(json.dumps(runs_data([hostile()])))


def test_a_page_of_a_hundred_cycles_is_small() -> None:
    """Trees as EAGLE-2 draws them for 8B models: depth 6, 10 children, 60 of 511 nodes kept."""
    page = html_page(runs_data([made_up(100, depth=6, top_k=10, total=60)]))
    assert len(page.encode("utf-8")) < 1_500_000


def test_the_program_is_whole_and_asks_for_nothing() -> None:
    css, js = explorer_assets()
    assert js.startswith("(function () {")
    assert len(SCRIPTS) == len(set(SCRIPTS))
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "XMLHttp",
        "import(",
    ):
        assert word not in js
    for word in ("url(", "@import", "http:", "https:"):
        assert word not in css
    assert js.count("http://") == js.count("http://www.w3.org/2000/svg") == 1


def test_the_headers_of_a_run_are_told_but_not_its_prompt() -> None:
    first = Started(**{**vars(started()), "prompt": "secret system message"})
    assert "secret" not in json.dumps(page_data([first]))
