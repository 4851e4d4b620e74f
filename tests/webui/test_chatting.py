from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from eagle_chat.core import recording
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.webui import comparing, limits, lossless, recordings
from eagle_chat.webui import session as sessions
from eagle_chat.webui.chatting import Picture, answer
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.measured import Measured
from eagle_chat.webui.service import Job
from eagle_chat.webui.session import BusyError, Session, Sessions, pack
from tests.patience import PATIENCE
from tests.tiny import tokens_of
from tests.webui.served import Held, service_of

SHORT = Controls(max_new_tokens=24)


@pytest.fixture(scope="module")
def engine() -> Held:
    return Held(seed=2)


def ask(service: Any, session: Session, question: str, controls: Controls = SHORT) -> list[Picture]:
    session.take(question)
    return list(answer(service, session, controls))


def expected(engine: Held, session: Session, question: str, policy: Any = "none", **sampling: Any) -> list[int]:
    """The tokens of plain decoding on the session's conversation."""
    messages = session.conversation.messages(question)
    config = SamplingConfig(**{"max_new_tokens": 24, **sampling})
    return tokens_of(engine.stream(messages, sampling=config, tree=TreeConfig(policy=policy)))


def test_an_answer_streams_and_becomes_a_turn_with_its_recording(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    right = expected(engine, session, "hello")
    pictures = ask(service, session, "hello")
    assert not pictures[-1].running
    assert session.conversation.turns[0].token_ids == right
    assert [turn[0] for turn in pictures[-1].transcript["turns"]] == ["hello"]
    (run,) = session.runs()
    assert run.question == "hello"
    assert tokens_of(run.events) == right
    assert len(recording.parse("".join(recording.lines(session.runs())))) == 1
    assert len(ask(service, session, "and more")[-1].transcript["turns"]) == 2


def test_after_an_answer_the_page_knows_what_a_plain_step_costs(engine: Held) -> None:
    """It is timed on the conversation's own state, which the next answer goes on with."""
    service, session = service_of(engine), Session("anna")
    assert service.measured() == Measured()
    pictures = ask(service, session, "hello")
    plain = service.measured().plain
    assert plain["verify"] > 0
    explorer = pictures[-1].explorer
    assert explorer is not None
    page = json.loads(explorer["page"])
    assert page["plain"] == pytest.approx(dict(plain), rel=1e-4)
    assert page["runs"][0]["question"] == "hello"
    right = expected(engine, session, "and more")
    ask(service, session, "and more")
    assert session.conversation.turns[1].token_ids == right
    assert service.measured().plain == plain, "once is enough"


@pytest.mark.parametrize("controls", [{"policy": "chain"}, {"policy": "static", "temperature": 0.9}, {"mode": "plain"}])
def test_every_way_of_drafting_gives_the_plain_text(engine: Held, controls: dict[str, Any]) -> None:
    session = Session("anna")
    right = expected(engine, session, "hi", temperature=controls.get("temperature", 0.0), seed=5)
    ask(service_of(engine), session, "hi", Controls(max_new_tokens=24, seed=5, **controls))
    assert session.conversation.turns[0].token_ids == right


def test_two_people_at_once_get_the_texts_of_two_runs_one_after_the_other() -> None:
    engine = Held(seed=3)
    service, sessions = service_of(engine), [Session("anna"), Session("ben")]
    right = [expected(engine, one, question) for one, question in zip(sessions, ("first", "other"), strict=True)]
    engine.gate.clear()
    threads = [
        threading.Thread(target=ask, args=(service, one, question))
        for one, question in zip(sessions, ("first", "other"), strict=True)
    ]
    for thread in threads:
        thread.start()
    assert engine.held.wait(PATIENCE)
    engine.gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [one.conversation.turns[0].token_ids for one in sessions] == right


def stopped(engine: Held, service: Any, session: Session) -> Iterator[Picture]:
    """What is left of an answer that was stopped in a cycle, in which the engine is held still."""
    session.take("hello")
    pictures = answer(service, session, Controls(max_new_tokens=200))
    next(picture for picture in pictures if picture.text)
    engine.gate.clear()
    assert engine.held.wait(PATIENCE)
    session.stop()
    return pictures


def test_stopping_keeps_what_there_is_and_the_next_answer_builds_on_it() -> None:
    engine = Held(seed=4)
    service, session = service_of(engine), Session("anna")
    pictures = stopped(engine, service, session)
    engine.gate.set()
    list(pictures)
    turn = session.conversation.turns[0]
    assert turn.finish_reason == "cancelled"
    assert 0 < len(turn.token_ids) < 200
    assert "stopped by you" in turn.figures
    right = expected(engine, session, "go on")
    ask(service, session, "go on")
    assert session.conversation.turns[1].token_ids == right


def test_a_new_chat_in_mid_answer_leaves_nothing_of_the_old_one() -> None:
    engine = Held(seed=4)
    service, session = service_of(engine), Session("anna")
    session.take("hello")
    pictures = answer(service, session, Controls(max_new_tokens=200))
    next(picture for picture in pictures if picture.text)
    session.clear()
    *_, last = pictures
    assert (last.rest, last.running, last.question, last.notice) == (True, False, None, "")
    assert last.transcript["turns"] == []
    assert session.conversation.turns == []
    assert session.records == []
    right = expected(engine, session, "go on")
    ask(service, session, "go on")
    assert session.conversation.turns[0].token_ids == right


def test_an_answer_asked_for_again_stays_until_there_is_another(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    ask(service, session, "hello")
    ask(service, session, "more")
    old = session.conversation.turns[1]
    with pytest.raises(UserError, match="one question at a time"):
        session.take("another") if session.take_again() else None
    (refused,) = answer(service, session, Controls(system="x" * 5000))
    assert refused.question is None
    assert [turn[0] for turn in refused.transcript["turns"]] == ["hello", "more"]
    assert session.conversation.turns[1] is old
    session.take_again()
    seed = Controls(max_new_tokens=24, temperature=1.0, seed=5)
    first, *_, last = answer(service, session, seed)
    assert [turn[0] for turn in first.transcript["turns"]] == ["hello", "more"], "not the old answer beside the new one"
    assert [turn[0] for turn in last.transcript["turns"]] == ["hello", "more"]
    assert session.conversation.turns[1].seed == 5
    assert len(session.records) == len(session.conversation.turns) == 2
    assert not session.busy


def test_an_answer_puts_an_opened_recording_away(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    ask(service, session, "hello")
    session.opened = pack([recording.Run("another", session.runs()[0].events)])
    assert [run.question for run in session.runs()] == ["another"]
    session.take("refused")
    list(answer(service, session, Controls(seed=None)))
    assert [run.question for run in session.runs()] == ["another"], "it is still what the page shows"
    session.take_again()
    list(answer(service, session, SHORT))
    assert [run.question for run in session.runs()] == ["hello"]


def test_stop_in_the_queue_leaves_it_at_once() -> None:
    engine = Held(seed=4)
    service, first, second = service_of(engine), Session("anna"), Session("ben")
    engine.gate.clear()
    first.take("hello")
    before = answer(service, first, SHORT)
    assert next(before).running
    second.take("hi")
    pictures = answer(service, second, SHORT)
    assert "1 question is in front" in next(pictures).notice
    second.stop()
    *_, last = pictures  # the first one is still being answered
    assert (last.rest, last.running, last.question) == (True, False, "hi")
    assert last.notice == "Stopped before the answer began."
    assert not second.busy
    assert service.status.jobs == 1
    engine.gate.set()
    list(before)


def test_stop_before_the_question_is_put_to_the_engine_counts() -> None:
    """Escape right after Enter."""
    engine = Held(seed=4)
    service, session = service_of(engine), Session("anna")
    session.take("hello")
    session.stop()
    *_, last = answer(service, session, Controls(max_new_tokens=200))
    assert not session.busy
    if session.conversation.turns:  # it had begun before it was stopped
        assert session.conversation.turns[0].finish_reason == "cancelled"
    else:
        assert (last.question, last.notice) == ("hello", "Stopped before the answer began.")
    ask(service, session, "go on")
    assert session.conversation.turns[-1].finish_reason == "length"


def test_a_comparison_that_is_stopped_shows_and_keeps_what_there_is() -> None:
    engine = Held(seed=4)
    service, session = service_of(engine), Session("anna")
    list(comparing.compare(service, session, "hello", ("none", "dynamic"), SHORT))
    before = session.compared
    states = comparing.compare(service, session, "hi", ("dynamic", "none"), Controls(max_new_tokens=200))
    first = next(state for state in states if state.lanes and state.lanes[0]["answer"])
    assert first.explorer == {}, "the last comparison is no more to be seen"
    session.stop()
    *_, last = states
    assert last.notice == "Stopped before both answers were there."
    assert last.metrics is None
    assert last.explorer is not None
    (shown,) = json.loads(last.explorer["page"])["runs"]
    assert shown["question"] == "hi"
    assert session.compared not in (None, before)
    (run,) = recording.parse(recordings.saved_comparison(session, "jsonl", Measured())["text"])
    assert (run.question, run.complete) == ("hi", True)


def test_a_refused_comparison_leaves_the_last_one_as_it_was(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    with pytest.raises(UserError, match="press Compare first"):
        recordings.saved_comparison(session, "html", Measured())
    list(comparing.compare(service, session, "hello", ("none", "dynamic"), SHORT))
    kept = session.compared
    assert kept is not None
    (refused,) = comparing.compare(service, session, " ", ("none", "dynamic"), SHORT)
    assert (refused.lanes, refused.verdict, refused.explorer) == (None, None, None)
    (drawn,) = lossless.sample(service, session, " ", "coupled", 100, 1.0, SHORT)
    assert drawn.picture is None
    assert session.compared == kept
    both = recording.parse(recordings.saved_comparison(session, "jsonl", Measured())["text"])
    assert [run.started.policy for run in both if run.started] == ["none", "dynamic"]


def test_what_was_stopped_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop, then send again: the next question waits for the end of the cycle, and is not lost in it."""
    engine = Held(seed=4)
    service, session = service_of(engine), Session("anna")
    pictures = stopped(engine, service, session)
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "SETTLING", 0.1)
        session.settle()  # not for ever
    with pytest.raises(BusyError, match="found an answer still being made"):
        session.take("too early")
    rest = threading.Thread(target=lambda: list(pictures))
    taking = threading.Thread(target=lambda: (session.settle(), session.take("go on")))
    for thread in (rest, taking):
        thread.start()
    engine.gate.set()
    for thread in (rest, taking):
        thread.join(PATIENCE)
    assert session.pending == "go on"
    assert session.conversation.turns[0].finish_reason == "cancelled"
    list(answer(service, session, SHORT))
    assert [turn.question for turn in session.conversation.turns] == ["hello", "go on"]


def test_a_new_chat_leaves_what_is_made_beside_it_alone(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    engine.gate.clear()
    states = comparing.compare(service, session, "hello", ("none", "dynamic"), SHORT)
    next(states)
    session.clear()
    with pytest.raises(BusyError, match="found a comparison still being made"):
        session.take("hello")
    engine.gate.set()
    assert "same text: yes" in list(states)[-1].verdict


def test_a_person_who_leaves_in_the_middle_does_not_block_the_others(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    session.take("hello")
    pictures = answer(service, session, Controls(max_new_tokens=200))
    next(picture for picture in pictures if picture.text)
    pictures.close()  # what Gradio does when the tab is closed
    assert not session.busy
    assert session.conversation.turns[0].finish_reason == "cancelled"
    other = Session("ben")
    ask(service, other, "hi")
    assert other.conversation.turns[0].finish_reason == "length"


def test_wrong_settings_are_a_line_on_the_page_and_the_question_comes_back(engine: Held) -> None:
    session = Session("anna")
    for wrong in ({"top_p": 0.0}, {"depth": 99}, {"max_new_tokens": 10**9}, {"system": "x" * 5000}, {"seed": None}):
        (picture,) = ask(service_of(engine), session, "hello", Controls(**wrong))
        assert "ec-error" in picture.notice
        assert picture.question == "hello"
        assert not session.busy
    assert session.conversation.turns == []


def test_questions_are_checked_before_they_are_taken() -> None:
    session = Session("anna")
    for question in ("", "  \n", None, "x" * (limits.MESSAGE + 1)):
        with pytest.raises(UserError):
            session.take(question)
    session.take("a\ud800b")
    assert session.pending == "a\ufffdb"
    with pytest.raises(UserError, match="one question at a time"):
        session.take("another")


def test_undo_takes_back_the_last_turn_and_old_recordings_are_dropped(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    few = Controls(max_new_tokens=2)
    for number in range(limits.KEPT_RECORDS + 2):
        ask(service, session, f"question {number}", few)
    assert len(session.runs()) == limits.KEPT_RECORDS
    assert session.take_back() == f"question {limits.KEPT_RECORDS + 1}"
    assert len(session.records) == len(session.conversation.turns) == limits.KEPT_RECORDS + 1
    session.clear()
    with pytest.raises(UserError, match="found none yet"):
        session.take_back()


def test_sessions_end_and_the_oldest_idle_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSIONS", 2)
    gone: list[str] = []
    now = [0.0]
    sessions = Sessions(gone.append, lambda: now[0])
    first = sessions.get("anna")
    now[0] = 1.0
    sessions.get("ben")
    assert sessions.get("anna") is first
    with pytest.raises(UserError, match="at most 2 people"):
        sessions.get("carl")
    now[0] = 2.0 + limits.IDLE_SECONDS
    sessions.get("anna").job = Job("anna", lambda job: iter(()), service_of(Held()))
    sessions.get("carl")
    assert gone == ["ben"]
    sessions.leave("anna")  # is still being answered
    sessions.leave("carl")
    sessions.get("dora").pending = "never put to the engine"
    assert gone == ["ben", "carl"]
    sessions.leave("dora")
    sessions.get("eva")
    assert gone == ["ben", "carl", "dora"]
    assert len(sessions) == 2


def test_a_comparison_gives_the_same_text_and_leaves_the_conversation_alone(engine: Held) -> None:
    service, session = service_of(engine), Session("anna")
    states = list(comparing.compare(service, session, "hello", ("none", "dynamic"), SHORT))
    last = states[-1]
    assert last.metrics is not None
    assert last.metrics[0].token_ids == last.metrics[1].token_ids
    assert "same text: yes" in last.verdict
    assert last.explorer is not None
    plain = service.measured().plain  # the plain lane is the newest that is known of plain steps
    assert plain["verify"] > 0
    assert json.loads(last.explorer["page"])["plain"] == pytest.approx(dict(plain), rel=1e-4)
    assert session.conversation.turns == []
    assert not session.busy
    (wrong,) = comparing.compare(service_of(engine), session, "hello", ("none", "fast"), SHORT)
    assert "found &#x27;fast&#x27;" in wrong.notice
