"""All checks in order: what is wrong with an early thing is not asked of a later one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Measured
from eagle_chat.core import registry
from eagle_chat.core.config import LoadConfig, TreeConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.loading import choose_device, find_entry, find_head
from eagle_chat.core.progress import Report
from eagle_chat.doctor import pair
from eagle_chat.doctor.findings import Finding, from_error, worst
from eagle_chat.doctor.head import check_head, read_head
from eagle_chat.doctor.machine import check_machine
from eagle_chat.doctor.memory import check_memory
from eagle_chat.doctor.numbers import Pass, check_head_numbers, check_numbers, check_understanding, run_text
from eagle_chat.doctor.quantised import check_quantised
from eagle_chat.doctor.speed import check_speed, measure_pair
from eagle_chat.doctor.taps import check_taps_measured
from eagle_chat.doctor.target import check_dtype, check_files, check_kind
from eagle_chat.doctor.text import check_text

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

Load = Callable[[LoadConfig], "Engine"]


@dataclass(frozen=True)
class Run:
    """The short run: questions, longest answer in tokens, tree, and what loads an engine."""

    questions: Sequence[Question]
    tokens: int
    tree: TreeConfig
    load: Load


def examine_files(config: LoadConfig) -> Iterator[Finding]:
    """What can be told without loading the target. UserError for a target that is nowhere."""
    names = pair.names(config)
    device, notes = choose_device(config)
    yield from check_machine(device, notes)
    yield from check_files(names)
    name, folder, missing = pair.head_place(names)
    try:
        shape = pair.shape(names, device, drafts=name not in (None, "none"))
    except EagleChatError as error:
        yield from_error("target", "kind", error, "the config is damaged, or this kind of model cannot verify a tree")
        return
    yield from check_kind(shape)
    yield from check_dtype(shape, config, device)
    yield from check_text(names, shape)
    head: DraftHead | None = None
    if missing is not None:
        yield from_error("head", "files", missing, "nothing is known under this name")
    elif folder is not None:
        checkpoint, findings = read_head(folder)
        yield from findings
        if checkpoint is not None:
            head, findings = check_head(checkpoint, shape.target, names, folder)
            yield from findings
    yield from check_memory(names.config, shape.target, head, device)


def examine_run(config: LoadConfig, run: Run, report: Report) -> Iterator[Finding]:
    """What shows only when the pair runs; to be asked where `examine_files` found no error."""
    report(f"loading {config.base}", 0.0)
    try:
        engine = run.load(config)
    except EagleChatError as error:
        yield from_error("run", "load", error, "seen only when everything is loaded")
        return
    yield from _check_loaded(engine, config, run, report)


def _check_loaded(engine: Engine, config: LoadConfig, run: Run, report: Report) -> Iterator[Finding]:
    report("looking at the numbers", 0.0)
    first = engine.chat.encode([{"role": "user", "content": run.questions[0].turns[0]}])
    if len(first) < engine.target.context_limit:
        seen = run_text(engine.target, first)
        numbers = [*check_numbers(engine, seen), *check_head_numbers(engine, seen)]
        yield from numbers
        if worst(numbers) == "error":
            return
    yield from check_understanding(engine)
    try:
        measured = measure_pair(engine, run.questions, run.tokens, run.tree, report)
    except EagleChatError as error:
        yield from_error("run", "answers", error, "seen only while answering")
        return
    yield from check_taps_measured(engine, _texts(engine, measured))
    head = find_head(config, find_entry(config.base))
    known = registry.find_head(head) if head is not None else None
    expected = known.tau if known is not None else None
    yield from check_speed(engine, measured, expected)
    yield from check_quantised(engine, config, run.load, report)


def _texts(engine: Engine, measured: Measured) -> list[tuple[Pass, int]]:
    """Prompt and the target's own answer as one text, and where the answer begins: on other text a head, which was
    trained on answers, tells its taps badly apart."""
    texts = []
    for answer in measured.answers[0]:
        prompt = engine.chat.encode([{"role": "user", "content": answer.question.turns[answer.turn]}])
        texts.append((run_text(engine.target, [*prompt, *answer.token_ids]), len(prompt)))
    return texts
