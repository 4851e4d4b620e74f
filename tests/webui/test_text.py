from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Finished, from_json
from eagle_chat.core.metrics import Metrics
from eagle_chat.webui import limits, recordings
from eagle_chat.webui.answer_html import answer_html, plain_html
from eagle_chat.webui.comparing import verdict_html
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.live import shown
from eagle_chat.webui.measured import Measured
from eagle_chat.webui.session import Session, pack
from tests.webui.served import HOSTILE

ALLOWED = {"p", "br", "pre", "code", "em", "strong", "ul", "ol", "li", "blockquote", "hr", "table", "thead", "tbody"}
ALLOWED |= {"tr", "th", "td", "h1", "h2", "h3", "h4", "h5", "h6"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.bad = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {("class",), ("style",), ("start",), ()}
        if tag not in ALLOWED or tuple(name for name, _ in attrs) not in known:
            self.bad.append(f"{tag} {attrs}")

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Tags:
    parsed = Tags()
    parsed.feed(markup)
    return parsed


def test_markup_of_the_model_is_text() -> None:
    parsed = read(answer_html(HOSTILE))
    assert parsed.bad == []
    assert parsed.text.strip() == HOSTILE
    assert read(plain_html(HOSTILE)).text == HOSTILE


@pytest.mark.parametrize(
    "text",
    ["![x](http://evil.example/a.png)", "[l](javascript:alert(1))", "<http://evil.example>", "&lt;b&gt; &amp; \\[x\\]",
     "[x]: http://evil.example\n\n[x]"],
)  # fmt: skip
def test_images_links_and_entities_stay_as_they_were_written(text: str) -> None:
    parsed = read(answer_html(text))
    assert parsed.bad == []
    assert parsed.text.split() == text.split()


@given(st.text(alphabet="<>&\"'`*_[]()!#-|\n ab:/\\~", max_size=60))
def test_nothing_becomes_a_tag_that_was_not_meant(text: str) -> None:
    assert read(answer_html(text)).bad == []


def test_markdown_is_shaped() -> None:
    markup = answer_html("**a** and\n\n```py\nif a < b:\n\n    x\n```\n\n1. one")
    assert "<strong>a</strong>" in markup
    assert "if a &lt; b:\n\n    x\n" in markup
    assert "<ol>" in markup


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "run.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_the_bundled_recordings_open_and_can_be_saved() -> None:
    assert recordings.bundled()
    for name in recordings.bundled():
        session = Session("anna", opened=pack(recordings.open_bundled(name)))
        assert json.loads(shown(session.runs())["page"])["runs"]
        page = recordings.saved(session, "html", Measured(), [])
        assert len(page["text"]) < 1_500_000
        assert recordings.saved(session, "jsonl", Measured(), [])["text"].count("\n") > 3
    with pytest.raises(UserError, match="one of the page's recordings"):
        recordings.open_bundled("../../etc/passwd")


def event(**changes: Any) -> str:
    base = {
        "type": "started", "version": 1, "prompt_tokens": 1, "reused_tokens": 0, "target": "x", "head": None,
        "policy": "none", "tree": {}, "sampling": {}, "device": "cpu", "dtype": "float32", "versions": {},
    }  # fmt: skip
    return json.dumps({**base, **changes})


@pytest.mark.parametrize(
    "text",
    ["", "hello", b"\xff\xfe\x00", "[1, 2]", "[" * 100_000, '{"type": "started"}', event(), event(version=2),
     event(prompt_tokens="many"), '{"type": "committed"}', event() + '\n{"type":"finished","reason":"x"}',
     '{"a": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(UserError) as refused:
        recordings.open_upload(write(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPLOAD", 1000)
    with pytest.raises(UserError, match="recording of at most"):
        recordings.open_upload(write(tmp_path, "x" * 1001))
    with pytest.raises(UserError, match="a file expected"):
        recordings.open_upload(None)


PLAIN, DRAFT = {"policy": "none"}, {"policy": "dynamic"}


def a_run(seconds: float, about: dict[str, Any], tokens: int = 3, reason: str = "length") -> Metrics:
    metrics = Metrics()
    started = from_json({**json.loads(event()), "head": "h", **about})
    first = Committed(0, [1], ["target"], "a", 0, 0, {"prefill": 1.0})
    rest = [Committed(n, [n], ["target"], "a", 1, 0, {"verify": seconds}) for n in range(1, tokens)]
    for one in (started, first, *rest, Finished(reason, "", tokens - 1, tokens)):  # type: ignore[arg-type]
        metrics.add(one)
    return metrics


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [(a_run(0.2, PLAIN), a_run(0.1, DRAFT), "Speed-up by drafting ×2.00, measured"),
     (a_run(0.1, DRAFT), a_run(0.2, PLAIN), "Speed-up by drafting ×2.00, measured"),
     (a_run(0.2, DRAFT), a_run(0.1, PLAIN), "Speed-up by drafting ×0.50: drafting costs this machine more"),
     (a_run(0.2, DRAFT), a_run(0.1, DRAFT), "right went ×2.00 as fast as left"),
     (a_run(0.1, PLAIN), a_run(0.2, PLAIN), "right went ×0.50 as fast as left")],
)  # fmt: skip
def test_a_speed_up_is_that_of_drafting_on_either_side(left: Metrics, right: Metrics, said: str) -> None:
    verdict = verdict_html(left, right, ["left", "right"])
    assert said in verdict
    assert "ec-good" in verdict
    assert ("drafting" in verdict) == (left.is_plain != right.is_plain)


def test_of_a_comparison_that_was_stopped_only_the_text_is_judged() -> None:
    verdict = verdict_html(a_run(0.1, PLAIN, 9), a_run(0.1, DRAFT, 4, "cancelled"), ["left", "right"])
    assert "same text: yes, token for token (4 tokens until the interruption)" in verdict
    assert "passes" not in verdict


def test_another_text_by_the_rejection_rule_is_no_fault() -> None:
    sampling = {"sampling": {"verify": "rejection", "temperature": 1.0}}
    verdict = verdict_html(a_run(0.1, PLAIN | sampling, 3), a_run(0.1, DRAFT | sampling, 4), ["left", "right"])
    assert "ec-bad" not in verdict
    assert "the coupled rule keeps the text too" in verdict
    assert "--" not in verdict
    assert "ec-bad" in verdict_html(a_run(0.1, PLAIN, 3), a_run(0.1, DRAFT, 4), ["left", "right"])


def test_controls_become_what_the_engine_takes() -> None:
    controls = Controls(policy="chain", depth=4, temperature=0.7, sample_top_k=5, system="  ")
    assert (controls.tree().policy, controls.tree().depth) == ("chain", 4)
    assert controls.sampling().top_k == 5
    assert controls.system_text() is None
    assert Controls(mode="plain").tree().policy == "none"
    again = Controls.of(controls.tree(), controls.sampling(), "be brief")
    assert (again.policy, again.depth, again.temperature, again.system) == ("chain", 4, 0.7, "be brief")


def test_no_number_of_nodes_is_a_tree_chosen_by_cost() -> None:
    assert Controls.of(TreeConfig(total_tokens=-1), SamplingConfig(), None).total_tokens == 0
    assert Controls(total_tokens=0).tree() == TreeConfig("dynamic", depth=3, top_k=3, total_tokens=-1)
    assert Controls(total_tokens=5).tree().total_tokens == 5
    with pytest.raises(UserError, match="number of nodes"):
        Controls(total_tokens=-1).tree()
