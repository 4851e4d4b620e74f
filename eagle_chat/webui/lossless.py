"""Losslessness shown: many first tokens beside the target's distribution."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle_chat.core.config import AUTO_NODES, PolicyName, TreeConfig
from eagle_chat.core.conversation import Conversation
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.policies import CPU_TREE
from eagle_chat.webui import limits
from eagle_chat.webui.chatting import error_notice, waiting_notice
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.service import EngineService, Job, Waiting
from eagle_chat.webui.session import DRAWS, Session

if TYPE_CHECKING:
    from eagle_chat.bench.first_token import Rule

STEP = 50
"""Draws between two pictures."""
WRONG = "wrong on purpose: "
RULES = {
    "coupled": "coupled (right)",
    "rejection": "rejection (right)",
    "no residual": f"{WRONG}a refused draft gets a second chance",
    "wrong q": f"{WRONG}fixed drafts judged as if they were sampled",
}
TREES: dict[PolicyName, str] = {"dynamic": "dynamic tree", "static": "static tree", "chain": "chain"}
PLAIN = 0.05
"""A wrong rule closer than this to the target's law (total variation) is said to be hard to catch."""


@dataclass(frozen=True)
class Sampled:
    """The picture with its verdict as HTML, None: as it was, and the numbers it was made from."""

    picture: str | None
    notice: str = ""
    running: bool = True
    result: dict[str, Any] | None = None


def sample(
    service: EngineService,
    session: Session,
    prompt: str | None,
    rule: str,
    draws: float | None,
    temperature: float | None,
    controls: Controls,
    policy: str = "dynamic",
) -> Iterator[Sampled]:
    """Draw one token of the answer to `prompt` many times with `rule`, and hold the draws against the target's law.
    `policy`: one of `TREES`; depth, width and nodes are those of `controls`."""
    result: dict[str, Any] | None = None
    try:
        session.check_free()
        job = _submit(service, session, prompt, rule, draws, temperature, controls, policy)
    except EagleChatError as error:
        yield Sampled(None, error_notice(error), running=False)
        return
    session.begin(job, DRAWS)
    notice = ""
    try:
        for batch in job.batches():
            if isinstance(batch, Waiting):
                notice = waiting_notice(batch) if result is None else ""
            elif batch:
                notice, result = "", batch[-1]
            yield Sampled(picture_html(result, rule) if result else "", notice, result=result)
        notice = ""
    except EagleChatError as error:
        notice = error_notice(error)
    finally:
        session.job = None
    yield Sampled(picture_html(result, rule) if result else "", notice, running=False, result=result)


def _submit(
    service: EngineService,
    session: Session,
    prompt: str | None,
    rule: str,
    draws: float | None,
    temperature: float | None,
    controls: Controls,
    policy: str,
) -> Job:
    from eagle_chat.bench.first_token import FirstTokens

    if rule not in RULES:
        raise UserError(f"one of {', '.join(RULES)} expected, found {rule!r}: choose one of these")
    chosen: Rule = rule  # type: ignore[assignment]  # checked just now
    count = limits.within(draws, 1, limits.DRAWS, "a number of draws")
    text = limits.check_text(prompt, limits.MESSAGE, "a question")
    if not text.strip():
        raise UserError("a question expected, found none: write one")
    tree = _tree(controls, policy)
    config = dataclasses.replace(controls.sampling(), temperature=float(temperature or 0))
    messages = Conversation(controls.system_text()).messages(text)

    def work(job: Job) -> Iterator[dict[str, Any]]:
        engine = service.engine(controls.head)
        first = FirstTokens(engine, engine.chat.encode(messages), tree, config)
        for seed in range(count):
            if job.stopping:
                break
            first.draw(seed, chosen)
            if (seed + 1) % STEP == 0:
                yield {**first.result(), "wanted": count}
        yield {**first.result(), "wanted": count}

    return service.submit(session.key, work)


def _tree(controls: Controls, policy: str) -> TreeConfig:
    if policy not in TREES:
        raise UserError(f"one of {', '.join(TREES)} expected, found {policy!r}: choose one of these")
    tree = controls.tree(policy)
    if tree.total_tokens != AUTO_NODES:
        return tree
    # A tree chosen by cost might be none, and nothing would be tested.
    return dataclasses.replace(tree, total_tokens=CPU_TREE.total_tokens)


def picture_html(result: dict[str, Any], rule: str) -> str:
    """Two bars a token: the target's probability and the share drawn; above them the verdict."""
    tokens = [*result["tokens"], {"text": "all others", "drafted": False, "other": True, **result["rest"]}]
    longest = max(max(row["p"], row["drawn"]) for row in tokens) or 1.0
    rows = "".join(_row(row, longest) for row in tokens)
    about = (
        f"The token after <b class='ec-token'>{_token(result['beginning'])}</b> in the answer, "
        f"{result['draws']:,} of {result['wanted']:,} draws"
    )
    return (
        f"{verdict_html(result, rule)}"
        f'<table class="ec-law"><caption>{about}. <span class="ec-key ec-key-p">the target\'s probability</span> '
        '<span class="ec-key ec-key-drawn">share drawn</span> <span class="ec-key-drafted">◆ drafted by the head</span>'
        '</caption><thead><tr><th scope="col">token</th><th scope="col">target</th><th scope="col">drawn</th>'
        f'<th scope="col" class="ec-bars-head">beside each other</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def verdict_html(result: dict[str, Any], rule: str) -> str:
    """Whether the draws fit, in a sentence."""
    p_value = result["p_value"]
    if p_value is None:
        return '<p class="ec-verdict">Too few draws to judge yet.</p>'
    name = html.escape(RULES[rule].removesuffix(" (right)").removeprefix(WRONG))
    shown = f"= {p_value:.2g}" if p_value >= 1e-12 else "below 1e-12"
    apart = result["wrong"].get(rule, 1.0)
    if apart < PLAIN:
        return (
            f'<p class="ec-verdict">Here this wrong rule is only {apart:.1%} away from the target\'s distribution, '
            "which no test of so few draws can see: the drafted tokens are next to impossible or next to certain. Take "
            "another question, or a temperature nearer to 1.</p>"
        )
    if result["verdict"] == "fits" and rule in result["wrong"]:
        return (
            f'<p class="ec-verdict">Not caught yet (chi-square p {shown}): this wrong rule is {apart:.0%} away from '
            "the target's distribution, which more draws will show.</p>"
        )
    if result["verdict"] == "fits":
        return (
            f'<p class="ec-verdict ec-good">✓ The draws fit the target\'s distribution (chi-square p {shown}): '
            f"nothing tells the rule “{name}” from plain sampling.</p>"
        )
    return (
        f'<p class="ec-verdict ec-bad">✗ The draws do not fit the target\'s distribution (chi-square p {shown}): '
        f"the rule “{name}” changes what the model says.</p>"
    )


def _row(row: dict[str, Any], longest: float) -> str:
    name = "all others" if row.get("other") else _token(row["text"])
    mark = ' <span title="drafted by the head" class="ec-key-drafted">◆</span>' if row["drafted"] else ""
    bars = "".join(
        f'<span class="ec-bar ec-bar-{kind}" style="width:{100 * row[field] / longest:.1f}%"></span>'
        for kind, field in (("p", "p"), ("drawn", "drawn"))
    )
    return (
        f'<tr><th scope="row"><span class="ec-token">{name}</span>{mark}</th><td>{row["p"]:.1%}</td>'
        f'<td>{row["drawn"]:.1%}</td><td class="ec-bars" aria-hidden="true">{bars}</td></tr>'
    )


def _token(text: str) -> str:
    """A token's text with its blanks made visible."""
    return html.escape(text).replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or "(empty)"
