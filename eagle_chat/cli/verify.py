"""`eagle-chat verify`: does a draft leave the text as it is, on this machine and this pair?"""

from __future__ import annotations

import dataclasses
import sys

from eagle_chat.bench.card import show
from eagle_chat.bench.files import check_writable
from eagle_chat.bench.machine import describe_machine
from eagle_chat.bench.parity import examine
from eagle_chat.bench.parity_report import parity_card, parity_document
from eagle_chat.bench.plan import DEFAULT_POLICIES, PLAIN, candidates, parse_policies
from eagle_chat.bench.prompts import read_questions, select
from eagle_chat.bench.report import as_json
from eagle_chat.bench.runner import Asker, check_length, none_fits
from eagle_chat.cli.answer import INTERRUPTED, StopRequest
from eagle_chat.cli.bench_options import VERIFY_TEMPERATURE, VERIFY_TOKENS, VerifyOptions
from eagle_chat.cli.measuring import answer_length, load, roomy_tree, save
from eagle_chat.cli.options import Given, Settings
from eagle_chat.cli.settings import resolve
from eagle_chat.cli.text import needs_ascii
from eagle_chat.core.config import SamplingConfig, VerifyRule
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import reporting

FAULTY = 1


def run(given: Given, asked: VerifyOptions) -> int:
    """Check; the exit code: 1 for a fault, 130 where it was stopped."""
    settings = resolve(given)
    if asked.json_file is not None:
        check_writable(asked.json_file, "--json")
    questions = select(read_questions(asked.questions), asked.limit)
    policies = parse_policies(asked.policies) if asked.policies is not None else DEFAULT_POLICIES
    if set(policies) == {PLAIN}:
        raise UserError("a policy with a draft expected, found only plain: give chain, static or dynamic")
    configs = _configs(asked, settings, given.verify)
    engine = load(settings)
    if engine.head is None:
        raise UserError("a draft head to check expected, found none: give --draft")
    defaults, roomy = engine.defaults, roomy_tree(engine)
    plans = candidates(policies, (), (0.0,), settings.tree, configs[0], defaults, roomy)
    shapes = [(plan.policy, plan.tree) for plan in plans if not plan.plain]
    stop = StopRequest()
    with stop, reporting() as report:
        findings = examine(Asker(engine, settings.system, lambda: stop.asked), questions, shapes, configs, report)
    value = parity_document(describe_machine(engine), engine.target.name, engine.head_name, findings)
    show(parity_card(value, engine.chat.token_text, needs_ascii(sys.stdout)))
    save(asked.json_file, as_json(value))
    if findings.faulty:
        return FAULTY
    if findings.empty and not findings.partial:
        raise none_fits(len(questions))
    return INTERRUPTED if findings.partial else 0


def _configs(asked: VerifyOptions, settings: Settings, only: VerifyRule | None) -> list[SamplingConfig]:
    """Greedy, then sampling under both rules, or under the `only` one that was asked for."""
    base = answer_length(asked.max_new_tokens, settings.sampling, VERIFY_TOKENS)
    check_length(base)
    temperature = base.temperature if asked.temperature is None else asked.temperature
    if asked.temperature is None and base.greedy:
        temperature = VERIFY_TEMPERATURE
    greedy = dataclasses.replace(base, temperature=0.0)
    if temperature == 0.0:
        return [greedy]
    rules: tuple[VerifyRule, ...] = ("coupled", "rejection") if only is None else (only,)
    sampled = [dataclasses.replace(base, temperature=temperature, verify=rule) for rule in rules]
    return [greedy, *sampled]
