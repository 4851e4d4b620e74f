"""The loop's own promises: caches, stops, budgets, context, turns, interrupts, faults."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_chat.core import masks
from eagle_chat.core.cache import TreeCache, TreeCacheLayer
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Drafted, Event, Finished, Started, Verified, from_json, to_json
from eagle_chat.core.state import DecodingState
from eagle_chat.core.target import Target
from tests import tiny

TREE = TreeConfig("dynamic", depth=4, top_k=3, total_tokens=14)
PROMPT = tiny.prompts(1)[0]


@functools.cache
def target() -> Target:
    return tiny.make_target("llama")


@functools.cache
def greedy(num_tokens: int = 64) -> list[int]:
    return tiny.generate(target().model, PROMPT, num_tokens)


def oracle(rank: int = 0, stop_ids: tuple[int, ...] = ()) -> Engine:
    """An engine whose draft is right with its child number `rank` at every level."""
    return tiny.make_engine(target(), tiny.StubHead(target(), PROMPT + greedy(), lambda at: rank), stop_ids)


def random_engine(kind: str = "eagle3", model: Target | None = None) -> Engine:
    model = model or target()
    return tiny.make_engine(model, tiny.make_head(kind, model))


@torch.inference_mode()
def fresh_logits(tokens: list[int]) -> torch.Tensor:
    return target().model(torch.tensor([tokens])).logits[0, -1]


@torch.inference_mode()
def logits_from_state(state: DecodingState) -> torch.Tensor:
    """The target's logits for the newest token, on what the state's cache holds."""
    root, at = torch.tensor(state.tokens[-1:]), torch.tensor([len(state.tokens) - 1])
    output = target().forward(root, at, masks.causal_matrix(1), state.cache)
    state.cache.truncate(state.cache.length)
    return output.logits[-1]


def committed(events: list[Event]) -> list[Committed]:
    return [event for event in events if isinstance(event, Committed)]


@pytest.mark.parametrize(("depth", "top_k", "total"), list(itertools.product((1, 2, 7), (1, 2, 10), (2, 7, 60))))
def test_cache_after_every_shape_of_tree(depth: int, top_k: int, total: int) -> None:
    """The accepted child is the last one offered (sibling 2 where there are three), so that rows must be moved."""
    engine = oracle(rank=min(2, top_k - 1))
    state = engine.new_state()
    tree = TreeConfig("dynamic", depth, top_k, total)
    for event in engine.stream(PROMPT, sampling=tiny.GREEDY64, tree=tree, state=state):
        if isinstance(event, Committed) and event.cycle in (1, 3):
            torch.testing.assert_close(logits_from_state(state), fresh_logits(state.tokens), rtol=1e-4, atol=1e-4)
        if isinstance(event, Committed) and event.cycle == 3:
            break
    assert state.tokens[len(PROMPT) :] == greedy()[: len(state.tokens) - len(PROMPT)]


def test_a_superset_tree_accepts_no_less() -> None:
    """One cycle from the same state with ever larger trees, whose kept nodes contain each other."""
    engine = tiny.make_engine(target(), tiny.StubHead(target(), PROMPT + greedy(), lambda at: at % 3))
    lengths = []
    for total in (2, 4, 8, 16, 30, 60):
        events = engine.stream(PROMPT, sampling=tiny.GREEDY64, tree=TreeConfig("dynamic", 5, 4, total))
        first_cycle = next(event for event in events if isinstance(event, Committed) and event.cycle == 1)
        lengths.append(first_cycle.accepted)
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_head_cache_is_that_of_the_committed_prefix_with_target_features(kind: str) -> None:
    engine = random_engine(kind)
    assert engine.head is not None
    state = engine.new_state()
    checked = 0
    for event in engine.stream(PROMPT, sampling=SamplingConfig(max_new_tokens=20), tree=TREE, state=state):
        if isinstance(event, Committed) and event.cycle > 0:
            compare_head_cache(engine, state)
            checked += 1
    assert checked > 5


@torch.inference_mode()
def compare_head_cache(engine: Engine, state: DecodingState) -> None:
    assert engine.head is not None
    assert state.head_cache is not None
    length = state.head_cache.length
    cache = target().new_cache(256)
    count = len(state.tokens)
    output = target().forward(
        torch.tensor(state.tokens), torch.arange(count), masks.causal_matrix(count), cache, engine.head.spec.taps
    )
    assert output.features is not None
    rebuilt = engine.head.new_cache(256)
    engine.head(
        torch.tensor(state.tokens[1 : length + 1]),
        engine.head.fuse(output.features[:length]),
        torch.arange(length),
        masks.causal_matrix(length),
        rebuilt,
    )
    for own, fresh in zip(state.head_cache.tree_layers, rebuilt.tree_layers, strict=True):
        for name in ("keys", "values"):
            found, expected = getattr(own, name)[:, :, :length], getattr(fresh, name)[:, :, :length]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tree", [TREE, TreeConfig("chain", depth=4), TreeConfig("none")])
def test_stop_and_budget_cut_before_commit(tree: TreeConfig) -> None:
    text = greedy()
    stop_at = next(i for i in range(4, 40) if text[i] not in text[:i])
    cases = [
        (text[stop_at], 64, stop_at + 1, "stop"),
        (None, 5, 5, "length"),
        (text[stop_at], stop_at + 1, stop_at + 1, "stop"),
        (text[0], 64, 1, "stop"),
        (None, 1, 1, "length"),
        (None, 0, 0, "length"),
    ]
    for stop_id, budget, length, reason in cases:
        engine = oracle(stop_ids=() if stop_id is None else (stop_id,))
        state = engine.new_state()
        sampling = SamplingConfig(max_new_tokens=budget)
        events = list(engine.stream(PROMPT, sampling=sampling, tree=tree, state=state))
        assert tiny.tokens_of(events) == text[:length]
        assert tiny.reason_of(events) == reason
        assert state.tokens == PROMPT + text[:length]
        assert state.cache.length == (len(state.tokens) - 1 if length else 0)
        assert sum(len(event.token_ids) for event in committed(events)) == length
        last = events[-1]
        assert isinstance(last, Finished)
        assert last.output_tokens == length
        shown = "".join(event.text for event in committed(events)) + last.text
        assert shown == engine.chat.decode(text[: length - 1] if reason == "stop" else text[:length])


def test_stop_strings_end_the_answer_and_are_not_shown() -> None:
    text = greedy()
    stop = f"t{text[3]} t{text[4]} "
    events = list(oracle().stream(PROMPT, sampling=SamplingConfig(stop=(stop,)), tree=TREE))
    shown = "".join(event.text for event in events if isinstance(event, Committed | Finished))
    full = "".join(f"t{token} " for token in text)
    assert shown == full[: full.index(stop)]
    assert tiny.reason_of(events) == "stop"


def test_figures_add_up() -> None:
    events = list(oracle().stream(PROMPT, sampling=SamplingConfig(max_new_tokens=30), tree=TREE))
    commits = committed(events)
    assert sum(len(event.token_ids) for event in commits) == 30
    assert commits[0].cycle == 0
    assert commits[0].origins == ["target"]
    for event in commits[1:-1]:
        assert len(event.token_ids) == event.accepted + 1
        assert event.origins == ["draft"] * event.accepted + ["target"]
        assert event.levels.count(True) == event.accepted
        assert set(event.seconds) == {"draft", "verify", "sample", "commit", "other"}
    assert [event.cycle for event in commits] == list(range(len(commits)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_row_is_never_accepted(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of the right draft gives a broken row: its token still comes from its parent, and the text is right."""
    engine = oracle()
    forward = Target.forward

    def broken(self: Target, tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
        output = forward(self, tokens, *args, **options)
        if tokens.shape[0] > 1 and not options.get("last_only"):
            output.logits[1, 7] = bad
        return output

    monkeypatch.setattr(Target, "forward", broken)
    events = list(engine.stream(PROMPT, sampling=SamplingConfig(max_new_tokens=20), tree=TREE))
    assert tiny.tokens_of(events) == greedy()[:20]
    assert all(event.accepted == 0 for event in committed(events))


@pytest.mark.parametrize("prefill", [True, False])
def test_a_broken_root_ends_with_a_clear_word(prefill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Target.forward

    def broken(self: Target, *args: Any, **options: Any) -> Any:
        output = forward(self, *args, **options)
        if options.get("last_only", False) == prefill:
            output.logits[0, 3] = float("nan")
        return output

    monkeypatch.setattr(Target, "forward", broken)
    events = list(oracle().stream(PROMPT, sampling=tiny.GREEDY64, tree=TREE))
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "error"
    assert "NaN or infinity" in str(last.message)
    assert tiny.tokens_of(events) == ([] if prefill else greedy()[:1])


@pytest.mark.parametrize("kind", ["eagle", "eagle3", None])
@pytest.mark.parametrize("length", [60, 63, 64, 100])
def test_context_limit(length: int, kind: str | None) -> None:
    model = tiny.make_target("llama", max_position_embeddings=64)
    engine = random_engine(kind, model) if kind else tiny.make_engine(model)
    prompt = tiny.prompts(1, length)[0]
    events = list(engine.stream(prompt, sampling=SamplingConfig(max_new_tokens=50)))
    assert len(tiny.tokens_of(events)) == max(64 - length, 0)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "context"
    assert "context full" in str(last.message)


def test_a_second_turn_that_crosses_the_context_limit() -> None:
    model = tiny.make_target("llama", max_position_embeddings=64)
    engine, plain = random_engine("eagle3", model), tiny.make_engine(model)
    state = engine.new_state()
    first = tiny.answer(engine, PROMPT, sampling=SamplingConfig(max_new_tokens=20), tree=TREE, state=state)
    second = [*PROMPT, *first, *tiny.prompts(1, 20, seed=9)[0]]
    events = list(engine.stream(second, sampling=tiny.GREEDY64, tree=TREE, state=state))
    assert tiny.reason_of(events) == "context"
    assert tiny.tokens_of(events) == tiny.answer(plain, second, sampling=tiny.GREEDY64)
    assert len(second) + len(tiny.tokens_of(events)) == 64


@pytest.mark.parametrize("kind", ["eagle", "eagle3", None])
def test_turns_reuse_what_the_cache_holds(kind: str | None) -> None:
    engine = random_engine(kind) if kind else tiny.make_engine(target())
    state = engine.new_state()
    sampling = SamplingConfig(max_new_tokens=16)
    first = tiny.answer(engine, PROMPT, sampling=sampling, state=state)
    longer = [*PROMPT, *first, 5, 9, 11]
    edited = [*PROMPT[:5], 44, *longer[6:]]
    for prompt, least in ((longer, len(PROMPT)), (longer, len(PROMPT)), (edited, 3), (PROMPT, 3), ([77], 0)):
        events = list(engine.stream(prompt, sampling=sampling, state=state))
        started = events[0]
        assert isinstance(started, Started)
        assert least <= started.reused_tokens < len(prompt)
        assert tiny.tokens_of(events) == tiny.generate(target().model, prompt, 16)


def test_the_draft_can_be_switched_between_turns() -> None:
    engine = random_engine("eagle3")
    state = engine.new_state()
    sampling = SamplingConfig(max_new_tokens=12)
    prompt = PROMPT
    for policy in ("none", "dynamic", "none", "none", "chain", "static"):
        found = tiny.answer(engine, prompt, sampling=sampling, tree=TreeConfig(policy), state=state)
        assert found == tiny.generate(target().model, prompt, 12)
        prompt = [*prompt, *found, 13]


@pytest.mark.parametrize("calls", [1, 5, 9, 12, 20, 27])
def test_an_interrupt_inside_a_forward_leaves_a_usable_state(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = random_engine("eagle3")
    state = engine.new_state()
    got = read_until_write(engine, state, state.cache, calls, monkeypatch)
    check_next_turn(engine, state, got)


def read_until_write(
    engine: Engine, state: DecodingState, cache: TreeCache | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The tokens of an answer up to an interrupt, which comes as the layers write into `cache` for the n-th time."""
    counter = itertools.count(1)

    def interrupted(write: Callable[..., Any]) -> Callable[..., Any]:
        def writes(layer: TreeCacheLayer, *states: Any, **more: Any) -> Any:
            if layer.owner is cache and next(counter) == number:
                raise KeyboardInterrupt
            return write(layer, *states, **more)

        return writes

    got: list[int] = []
    with monkeypatch.context() as patch:
        for way in ("update", "append"):  # of the general and of the fast path, once a layer
            patch.setattr(TreeCacheLayer, way, interrupted(getattr(TreeCacheLayer, way)))
        with pytest.raises(KeyboardInterrupt):
            read(engine.stream(PROMPT, sampling=tiny.GREEDY64, tree=TREE, state=state), got)
    return got


def read(events: Iterator[Event], into: list[int]) -> None:
    for event in events:
        if isinstance(event, Committed):
            into.extend(event.token_ids)


def check_next_turn(engine: Engine, state: DecodingState, got: list[int]) -> None:
    assert got == greedy()[: len(got)]
    prompt = [*PROMPT, *got, 21, 22]
    found = tiny.answer(engine, prompt, sampling=SamplingConfig(max_new_tokens=16), tree=TREE, state=state)
    assert found == tiny.generate(target().model, prompt, 16)


@pytest.mark.parametrize("events_read", range(7))
def test_closing_at_any_event_leaves_a_usable_state(events_read: int) -> None:
    engine = oracle()
    state = engine.new_state()
    stream = engine.stream(PROMPT, sampling=tiny.GREEDY64, tree=TREE, state=state, trace=True)
    got: list[int] = []
    read(itertools.islice(stream, events_read), got)
    stream.close()
    other = random_engine("eagle")
    check_next_turn(other, other.new_state(), got)
    check_next_turn(engine, state, got)


@pytest.mark.parametrize("draft_call", [1, 2, 5])
def test_an_interrupt_inside_a_draft_leaves_a_usable_state(draft_call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = random_engine("eagle3")
    state = engine.new_state()
    got = read_until_write(engine, state, state.head_cache, draft_call + 2, monkeypatch)
    check_next_turn(engine, state, got)


def test_an_interrupt_while_a_cache_grows_leaves_a_usable_state(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = random_engine("eagle3")
    state = engine.new_state()
    sampling = SamplingConfig(max_new_tokens=8)
    first = tiny.answer(engine, PROMPT, sampling=sampling, tree=TREE, state=state)
    longer = [*PROMPT, *first, *tiny.prompts(1, 225, seed=8)[0]]
    move, counter = TreeCacheLayer.move, itertools.count(1)

    def interrupted(layer: TreeCacheLayer, filled: int, rows: object = None) -> None:
        move(layer, filled)
        if next(counter) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(TreeCacheLayer, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny.answer(engine, longer, sampling=sampling, tree=TREE, state=state)
    check_next_turn(engine, state, first)


def test_trace_tells_the_whole_tree() -> None:
    engine = random_engine("eagle3")
    events = list(engine.stream(PROMPT, sampling=SamplingConfig(max_new_tokens=12), tree=TREE, trace=True))
    drafted = [event for event in events if isinstance(event, Drafted)]
    verified = [event for event in events if isinstance(event, Verified)]
    assert len(drafted) == len(verified) == len(committed(events)) - 1
    for draft, check in zip(drafted, verified, strict=True):
        kept = sorted((node for node in draft.nodes if node.stage == "kept"), key=lambda node: node.slot)
        assert [node.slot for node in kept] == list(range(len(check.nodes)))
        by_id = {node.id: node for node in draft.nodes}
        for node in kept[1:]:
            parent = by_id[node.parent]
            assert parent.stage == "kept"
            assert node.depth == parent.depth + 1
            assert node.value == pytest.approx(parent.value + torch.log(torch.tensor(node.q)).item(), abs=1e-4)
        assert check.path[0] == 0
        assert [node.status for node in check.nodes if node.slot in check.path] == ["accepted"] * len(check.path)
    for event in events:
        assert from_json(to_json(event)) == event


def test_trace_changes_nothing() -> None:
    engine = random_engine("eagle3")
    sampling = SamplingConfig(0.8, seed=4, max_new_tokens=20)
    runs = [tiny.answer(engine, PROMPT, sampling=sampling, tree=TREE, trace=trace) for trace in (False, True)]
    assert runs[0] == runs[1]


def test_a_tree_larger_than_possible_is_clamped_with_a_note() -> None:
    engine = random_engine("eagle3")
    events = list(
        engine.stream(PROMPT, sampling=SamplingConfig(max_new_tokens=8), tree=TreeConfig("dynamic", 1, 2, 60))
    )
    started = events[0]
    assert isinstance(started, Started)
    assert any("3 nodes" in note for note in started.notes)
    assert {event.num_nodes for event in committed(events)[1:-1]} == {3}


def test_nodes_chosen_by_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_CHAT_CACHE", str(tmp_path))
    engine = random_engine("eagle3")
    tree = TreeConfig("dynamic", 3, 3, -1)
    events = list(engine.stream(PROMPT, sampling=SamplingConfig(max_new_tokens=8), tree=tree))
    started = events[0]
    assert isinstance(started, Started)
    assert any("chosen by measurement" in note for note in started.notes)
    assert started.tree["total_tokens"] == -1
    assert tiny.tokens_of(events) == greedy()[:8]
    assert (tmp_path / "machine.json").is_file()


def test_bad_prompts_are_refused_in_a_line() -> None:
    engine = tiny.make_engine(target())
    for prompt in ([], [3, tiny.VOCAB], [-1]):
        with pytest.raises(UserError):
            list(engine.stream(prompt))
    with pytest.raises(UserError, match="needs a draft head"):
        list(engine.stream(PROMPT, tree=TreeConfig("chain")))


def test_a_prompt_longer_than_a_chunk() -> None:
    """A prompt longer than one chunk is run in pieces and gives the same answer."""
    model = tiny.make_target("llama", max_position_embeddings=2048)
    prompt = tiny.prompts(1, 1100)[0]
    engine = random_engine("eagle3", model)
    found = tiny.answer(engine, prompt, sampling=SamplingConfig(max_new_tokens=12), tree=TREE)
    assert found == tiny.generate(model.model, prompt, 12)


@pytest.mark.parametrize("tree", [TREE, TreeConfig("static"), TreeConfig("chain", depth=3)])
def test_an_answer_longer_than_what_is_reserved(tree: TreeConfig) -> None:
    """Both caches grow during the answer; the oracle keeps it short in cycles."""
    model = tiny.make_target("llama", max_position_embeddings=1024)
    expected = tiny.generate(model.model, PROMPT, 560)
    engine = tiny.make_engine(model, tiny.make_head("eagle3", model))
    sampling = SamplingConfig(max_new_tokens=560)
    state = engine.new_state()
    stub = tiny.make_engine(model, tiny.StubHead(model, PROMPT + expected, tiny.STUBS["oracle"]))
    assert tiny.answer(stub, PROMPT, sampling=sampling, tree=tree) == expected
    prompt = [*PROMPT, *expected[:500]]
    found = tiny.answer(engine, prompt, sampling=SamplingConfig(max_new_tokens=40), tree=tree, state=state)
    assert found == expected[500:540]


@pytest.mark.parametrize(("depth", "top_k"), [(5, 97), (8, 60)])
def test_a_draft_wider_than_its_tree(depth: int, top_k: int) -> None:
    tree = TreeConfig("dynamic", depth, top_k, 20)
    assert tiny.answer(random_engine(), PROMPT, sampling=SamplingConfig(max_new_tokens=10), tree=tree) == greedy()[:10]


def test_a_state_belongs_to_one_engine_and_one_answer() -> None:
    engine, other = random_engine(), tiny.make_engine(target())
    with pytest.raises(UserError, match="another one's"):
        list(engine.stream(PROMPT, state=other.new_state()))
    state = engine.new_state()
    first = engine.stream(PROMPT, sampling=tiny.GREEDY64, tree=TREE, state=state)
    next(first)
    next(first)
    second = tiny.answer(engine, PROMPT, sampling=SamplingConfig(max_new_tokens=6), tree=TREE, state=state)
    assert second == greedy()[:6]
    with pytest.raises(UserError, match="same state"):
        list(first)
