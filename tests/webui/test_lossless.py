"""The page that shows losslessness: every rule that is wrong on purpose is caught with every tree, and no right one is.

Seeds are fixed, so what passes once passes always; and how far a wrong rule is from the law is known exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_chat.bench.first_token import ROOTS, SHOWS, WRONG, FirstTokens
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.webui import lossless
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.session import Session
from tests.tiny import StubHead, TinyChat, make_target, tokens_of
from tests.webui.served import service_of

COLD = 0.1
"""The tiny target is nearly uniform; at this temperature it has tokens that are likely, but not certain."""
QUESTION = "hi"


class Informed(StubHead):
    """A head that nearly knows the law: its logits are those of the target along one answer, somewhat flattened."""

    def __init__(self, target: Any, rows: Tensor) -> None:
        """`rows` [T, V]: what the target says after each token of prompt and answer."""
        super().__init__(target, [], lambda at: 0)
        self._rows = rows

    def logits(self, hidden: Tensor) -> Tensor:
        return self._rows[(hidden[:, 0].long() + 1).clamp(max=len(self._rows) - 1)] * 0.7


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The target's own law is what the head drafts from, at the temperature of these tests."""
    target, chat = make_target(), TinyChat()
    prompt = chat.encode([{"role": "user", "content": QUESTION}])
    sampling = SamplingConfig(temperature=COLD, max_new_tokens=ROOTS + 4)
    answer = tokens_of(Engine(target, chat, None).stream(prompt, sampling=sampling))  # type: ignore[arg-type]
    with torch.no_grad():
        rows = target.model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    return Engine(target, chat, Informed(target, rows / COLD), "informed")  # type: ignore[arg-type]


def last(engine: Engine, rule: str, policy: str, draws: int = 600, temperature: float = COLD, **controls: Any) -> Any:
    session = Session("anna")
    states = lossless.sample(
        service_of(engine), session, QUESTION, rule, draws, temperature, Controls(**controls), policy
    )
    *_, state = states
    assert not session.busy
    return state


@pytest.mark.parametrize("policy", lossless.TREES)
@pytest.mark.parametrize("rule", lossless.RULES)
def test_every_wrong_rule_is_caught_and_no_right_one(engine: Engine, rule: str, policy: str) -> None:
    state = last(engine, rule, policy)
    assert state.result["draws"] == 600
    assert state.result["verdict"] == ("fault" if rule in WRONG else "fits")
    assert ("✗" if rule in WRONG else "✓") in state.picture
    assert min(state.result["wrong"].values()) >= SHOWS, "this root was to be one at which both faults show"


def test_a_tree_that_is_chosen_by_cost_elsewhere_is_a_tree_here(engine: Engine) -> None:
    """It might be no tree at all, and then a wrong rule would be right."""
    assert last(engine, "wrong q", "dynamic", total_tokens=0).result["verdict"] == "fault"


@pytest.mark.parametrize("rule", WRONG)
def test_what_a_wrong_rule_draws_is_known(engine: Engine, rule: Any) -> None:
    prompt = engine.chat.encode([{"role": "user", "content": QUESTION}])
    first = FirstTokens(engine, prompt, TreeConfig(policy="static"), SamplingConfig(temperature=COLD))
    law, draws = first.wrong_law(rule), 1500
    assert float(law.sum()) == pytest.approx(1.0)
    drawn = Counter(first.draw(seed, rule) for seed in range(draws))
    for token, chance in enumerate(law.tolist()):
        assert abs(drawn[token] / draws - chance) <= 4 * math.sqrt(chance * (1 - chance) / draws) + 1 / draws


def test_where_nothing_can_be_seen_the_page_says_so(engine: Engine) -> None:
    """Far above temperature 1 every token is as good as impossible."""
    state = last(engine, "no residual", "chain", temperature=2.0)
    assert state.result["wrong"]["no residual"] < lossless.PLAIN
    assert "Take another question" in state.picture
    assert "✓" not in state.picture


def test_what_cannot_be_sampled_is_refused_in_a_line(engine: Engine) -> None:
    assert "temperature above 0" in last(engine, "coupled", "dynamic", temperature=0.0).notice
    assert "found &#x27;bush&#x27;" in last(engine, "coupled", "bush").notice
    assert "found &#x27;guess&#x27;" in last(engine, "guess", "dynamic").notice
