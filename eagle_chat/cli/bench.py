"""`eagle-chat bench`: measure, show a card, write files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import eagle_chat
from eagle_chat.bench.alpha import measure_alpha
from eagle_chat.bench.answers import answer_lines, answer_path
from eagle_chat.bench.calibration import measure_calibration
from eagle_chat.bench.card import bench_card, show
from eagle_chat.bench.context import context_questions
from eagle_chat.bench.files import check_writable
from eagle_chat.bench.machine import describe_machine
from eagle_chat.bench.peers.compare import peer_figures
from eagle_chat.bench.plan import (
    DEFAULT_POLICIES,
    PLAIN,
    Candidate,
    candidates,
    parse_integers,
    parse_numbers,
    parse_policies,
)
from eagle_chat.bench.plot import check_matplotlib, draw, drawable
from eagle_chat.bench.prompts import Question, read_questions, select
from eagle_chat.bench.quantised import compare
from eagle_chat.bench.report import as_json, document, unlike_plain
from eagle_chat.bench.runner import Asker, Measured, check_length, measure
from eagle_chat.cli.answer import INTERRUPTED, StopRequest
from eagle_chat.cli.bench_options import BENCH_TOKENS, BenchOptions
from eagle_chat.cli.bench_peers import (
    FIRST_TURNS,
    OTHER_WEIGHTS,
    PEER_POLICIES,
    check_peers,
    first_turns,
    measure_with_peers,
)
from eagle_chat.cli.measuring import answer_length, load_heads, roomy_tree, save
from eagle_chat.cli.options import Given, Settings
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import needs_ascii, say
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import Report, reporting
from eagle_chat.core.quantization import wanted
from eagle_chat.serving.config import check_installed

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

FAILED = 1


@dataclass(frozen=True)
class _Plan:
    """What is going to be measured. `candidates` empty: no comparison."""

    questions: list[Question]
    source: str
    candidates: list[Candidate]
    sampling: SamplingConfig
    temperatures: tuple[float, ...]
    notes: list[str]
    lengths: tuple[int, ...]


def run(given: Given, asked: BenchOptions) -> int:
    """Measure; the exit code: 1 where greedy float32 text differs from plain decoding, 130 where it was stopped."""
    settings = resolve(given)
    if asked.concurrency is not None:
        check_installed()
        from eagle_chat.cli.bench_server import run as run_load

        return run_load(settings, asked)
    if asked.plain_engine is not None:
        raise UserError("--concurrency expected with --plain-engine, found none: give such as --concurrency 1,2,4,8")
    _check_files(asked)
    questions = _questions(asked)
    _parse(asked, settings)  # a mistake is told before the model is loaded
    engines = load_heads(settings, asked.drafts)
    plan = _plan(engines, settings, asked, questions)
    stop = StopRequest()
    with stop, reporting() as report:
        askers = [Asker(engine, settings.system, lambda: stop.asked) for engine in engines]
        value, measured = _measure(askers, plan, settings, asked, report)
        if wanted(settings.load) and not value["partial"]:
            report("loading the unquantised target, to compare with", 0.9)
            nodes = engines[0].defaults.total_tokens or 1
            value["quantisation"] = compare(engines[0], settings.load, nodes, eagle_chat.load_engine)
    show(bench_card(value, needs_ascii(sys.stdout)))
    _write_files(value, measured, asked)
    if measured is not None and measured.failure is not None:
        raise measured.failure
    if value["partial"]:
        return INTERRUPTED
    return FAILED if unlike_plain(value) else 0


def _check_files(asked: BenchOptions) -> None:
    """UserError where a file could not be written, or nothing would be in it: better before a long measurement."""
    named = (("--json", asked.json_file), ("--plot", asked.plot_file), ("--answers", asked.answers_file))
    files = [(option, path) for option, path in named if path is not None]
    for place, (option, path) in enumerate(files):
        check_writable(path, option)
        same = [other for other, earlier in files[:place] if earlier.absolute() == path.absolute()]
        if same:
            raise UserError(f"a file of its own expected for {option}, found that of {same[0]}: change one")
    if _only_head(asked) and asked.answers_file is not None:
        raise UserError("a comparison expected for --answers, found only tables of the head: add --policies")
    if _only_head(asked) and asked.plot_file is not None and not asked.calibration:
        raise UserError("a comparison expected for --plot, found only --alpha: add --policies or --calibration")
    if asked.plot_file is not None:
        check_matplotlib()


def _only_head(asked: BenchOptions) -> bool:
    """Whether the head alone is looked at, and no policies are compared."""
    return (asked.alpha or asked.calibration) and asked.policies is None and asked.context is None and not asked.peers


def _questions(asked: BenchOptions) -> list[Question]:
    if asked.context is not None:
        return []
    return select(read_questions(asked.questions), asked.limit)


@dataclass(frozen=True)
class _Lists:
    policies: tuple[str, ...]
    sizes: tuple[int, ...]
    temperatures: tuple[float, ...]
    contexts: tuple[int, ...]


def _parse(asked: BenchOptions, settings: Settings) -> _Lists:
    policies = parse_policies(asked.policies) if asked.policies is not None else DEFAULT_POLICIES
    if asked.peers and asked.policies is None:
        policies = PEER_POLICIES
    if asked.policies is None and settings.tree.policy is not None:
        policies = parse_policies(settings.tree.policy)
    temperatures: tuple[float, ...] = (settings.sampling.temperature,)
    if asked.temperature is not None:
        temperatures = parse_numbers(asked.temperature, "--temperature")
    for temperature in temperatures:
        SamplingConfig(temperature=temperature)  # which knows what is possible
    check_length(answer_length(asked.max_new_tokens, settings.sampling, BENCH_TOKENS))
    sizes = parse_integers(asked.total_tokens, "--total-tokens") if asked.total_tokens is not None else ()
    contexts = parse_integers(asked.context, "--context") if asked.context is not None else ()
    if asked.peers:
        check_peers(settings, temperatures)
    return _Lists(policies, sizes, temperatures, contexts)


def _plan(engines: Sequence[Engine], settings: Settings, asked: BenchOptions, questions: list[Question]) -> _Plan:
    engine = engines[0]
    lists = _parse(asked, settings)
    sampling = answer_length(asked.max_new_tokens, settings.sampling, BENCH_TOKENS)
    source, policies = asked.questions, lists.policies
    notes: list[str] = []
    if lists.contexts:
        questions, notes = context_questions(engine, lists.contexts, sampling.max_new_tokens, settings.system)
        source = "prompts of given lengths"
    if engine.head is None:
        if asked.alpha or asked.calibration:
            raise UserError("a draft head expected for --alpha and --calibration, found none: give --draft")
        policies = (PLAIN,) if asked.policies is None else policies
    if asked.peers:
        questions, notes = first_turns(questions), [*notes, FIRST_TURNS, OTHER_WEIGHTS]
    chosen = [] if _only_head(asked) else _candidates(engines, settings, lists, policies, sampling)
    return _Plan(questions, source, chosen, sampling, lists.temperatures, notes, lists.contexts)


def _candidates(
    engines: Sequence[Engine], settings: Settings, lists: _Lists, policies: Sequence[str], sampling: SamplingConfig
) -> list[Candidate]:
    tree, defaults, roomy = settings.tree, engines[0].defaults, roomy_tree(engines[0])
    return candidates(policies, lists.sizes, lists.temperatures, tree, sampling, defaults, roomy, len(engines))


def _measure(
    askers: Sequence[Asker], plan: _Plan, settings: Settings, asked: BenchOptions, report: Report
) -> tuple[dict[str, Any], Measured | None]:
    """The document, and the answers of the comparison."""
    engine, heads = askers[0].engine, [asker.engine.head_name for asker in askers]
    measured, met = None, None
    if asked.peers:
        measured, met = measure_with_peers(askers, plan.candidates, plan.questions, settings, asked.drafts, report)
    elif plan.candidates:
        measured = measure(askers, plan.candidates, plan.questions, report)
    value = document(
        describe_machine(engine),
        engine.target.name,
        [name for name in heads if name is not None],
        plan.source,
        plan.questions,
        measured,
        plan.sampling.max_new_tokens,
        plan.notes,
        plan.lengths,
    )
    if met is not None and measured is not None and value["runs"]:
        labels = [one["label"] for one in value["runs"]]
        value["peers"] = peer_figures(measured, labels, *met, plan.sampling.seed)
    tree, common = settings.tree, (plan.questions, plan.sampling, plan.temperatures)
    if asked.alpha:
        _by_head(value, "alpha", askers, lambda asker: measure_alpha(asker, *common, tree.depth, report))
    if asked.calibration:
        _by_head(value, "calibration", askers, lambda asker: measure_calibration(asker, *common, tree, report))
    return value, measured


def _by_head(
    value: dict[str, Any],
    name: str,
    askers: Sequence[Asker],
    measured: Callable[[Asker], tuple[list[dict[str, Any]], bool]],
) -> None:
    """Put the tables of every head under `name`, until a person stops."""
    for asker in askers:
        if value["partial"]:
            return
        tables, value["partial"] = measured(asker)
        value.setdefault(name, []).extend({"head": asker.engine.head_name, **table} for table in tables)


def _write_files(value: dict[str, Any], measured: Measured | None, asked: BenchOptions) -> None:
    save(asked.json_file, as_json(value))
    _write_answers(value, measured, asked)
    if asked.plot_file is not None:
        if drawable(value):
            save(asked.plot_file, draw(value))
        else:
            say(f"not written: {asked.plot_file}, for nothing was finished that could be drawn", quiet=True)


def _write_answers(value: dict[str, Any], measured: Measured | None, asked: BenchOptions) -> None:
    if asked.answers_file is None or measured is None:
        return
    now, written = time.time(), set()
    for index, run_values in enumerate(value["runs"]):
        label = f"{run_values['label']} temperature {run_values['temperature']:g}"
        label = f"{label} {index}" if label in written else label
        written.add(label)
        model_id = f"{value['target']}-{label}".replace(" ", "-")
        save(answer_path(asked.answers_file, label), answer_lines(measured.answers[index], model_id, now))
