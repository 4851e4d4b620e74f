"""Quantised against unquantised: what is said of it, and that both really run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_chat.bench import quantised
from eagle_chat.bench.quantised import compare, interleaved, quantisation_line
from eagle_chat.core.config import AUTO_NODES, LoadConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.loading import load_engine
from eagle_chat.core.target import Target
from tests import tiny
from tests.core.test_loading import save_tokenizer


def result(**changes: Any) -> dict[str, Any]:
    rows = [
        {"nodes": 1, "seconds": 0.010, "unquantised_seconds": 0.020, "speedup": 2.0},
        {"nodes": 8, "seconds": 0.050, "unquantised_seconds": 0.025, "speedup": 0.5},
    ]
    return {"bits": 4, "unquantised": "float32", "rows": rows, "reason": None, **changes}


def test_the_line_says_faster_or_slower() -> None:
    assert quantisation_line(result()) == (
        "4-bit against float32: a forward of 1 token is 2.00 times as fast (10.0 ms, unquantised 20.0); "
        "a forward of 8 tokens is 2.00 times slower (50.0 ms, unquantised 25.0)"
    )
    assert quantisation_line(result(rows=[], reason="no room")).endswith("not compared, no room")


def test_both_targets_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, order = [tiny.make_target(seed=0), tiny.make_target(seed=1)], []
    real = Target.forward

    def noted(target: Target, *args: Any, **more: Any) -> Any:
        order.append(targets.index(target))
        return real(target, *args, **more)

    monkeypatch.setattr(Target, "forward", noted)
    seconds = interleaved(targets, 4)
    assert all(value > 0 for value in seconds)
    assert order == [0, 1] * (quantised.REPEATS + 2)  # the prompt of each, then all rounds


def test_a_quantised_target_is_compared_with_itself_unquantised(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    tiny.make_model("llama").save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    config = LoadConfig(base=str(tmp_path), draft="none", dtype="float32", device="cpu", load_in_4bit=True)
    asked: list[LoadConfig] = []

    def load(whole: LoadConfig) -> Any:
        asked.append(whole)
        return load_engine(whole)

    found = compare(load_engine(config), config, 8, load)
    assert [row["nodes"] for row in found["rows"]] == [1, 8]
    assert (found["bits"], found["unquantised"], found["reason"]) == (4, "float32", None)
    assert (asked[0].load_in_4bit, asked[0].dtype) == (False, "float32")


def test_a_tree_chosen_by_cost_is_compared_at_the_usual_size() -> None:
    engine: Any = SimpleNamespace(target=tiny.make_target())
    found = compare(engine, LoadConfig(load_in_4bit=True), AUTO_NODES, lambda _: engine)
    assert [row["nodes"] for row in found["rows"]] == [1, quantised.USUAL_NODES]


def test_without_room_or_files_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny.make_engine(tiny.make_target())

    def fail(_: LoadConfig) -> Any:
        raise UserError("nothing there")

    assert "nothing there" in compare(engine, LoadConfig(), 8, fail)["reason"]
    monkeypatch.setattr(quantised, "available", lambda *_, **__: (1000, "free"))
    assert "are free" in compare(engine, LoadConfig(), 8, fail)["reason"]
