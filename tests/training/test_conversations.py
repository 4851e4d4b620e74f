"""Files of the common layouts, and what is not taken from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core.errors import UserError
from eagle_chat.training import filters
from eagle_chat.training.conversations import Left, from_row, question_hash, read

EXPECTED = [("user", "What is it?"), ("assistant", "A thing.")]
SHAREGPT = {
    "id": "a",
    "conversations": [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "A thing."}],
}
MESSAGES = {"messages": [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A thing."}]}
ULTRACHAT = {"id": "1", "data": ["What is it?", "A thing."]}
PAIR = {"prompt": "What is it?", "response": "A thing.", "ended": False}


def turns(row: Any) -> list[tuple[str, str]]:
    conversation = from_row(row, "here")
    return [] if conversation is None else [(turn["role"], turn["content"]) for turn in conversation.messages]


@pytest.mark.parametrize("row", [SHAREGPT, MESSAGES, ULTRACHAT, PAIR])
def test_layouts(row: dict[str, Any]) -> None:
    assert turns(row) == EXPECTED


def write_array(path: Path, rows: list[Any]) -> None:
    path.write_text(json.dumps(rows), encoding="utf-8")


def write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")


def write_gzip(path: Path, rows: list[Any]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.json", write_array), ("lines.json", write_lines), ("a.jsonl", write_lines), ("a.jsonl.gz", write_gzip)],
)
def test_files(tmp_path: Path, name: str, write: Callable[[Path, list[Any]], None]) -> None:
    odd = {"prompt": "a\u2028b 😀", "response": "c"}
    write(tmp_path / name, [SHAREGPT, odd])
    found = list(read([str(tmp_path / name)]))
    assert len(found) == 2
    assert found[1].question == "a\u2028b 😀"
    assert len(list(read([str(tmp_path)]))) == 2


def test_a_folder_of_shards_is_read_without_its_notes(tmp_path: Path) -> None:
    write_lines(tmp_path / "part-00001.jsonl", [PAIR])
    write_lines(tmp_path / "part-00000.jsonl", [SHAREGPT])
    (tmp_path / "corpus.json").write_text("{}")
    assert [one.ended for one in read([str(tmp_path)])] == [True, False]


def test_turns_out_of_order_end_the_conversation() -> None:
    rows = [*MESSAGES["messages"], {"role": "assistant", "content": "again"}, {"role": "user", "content": "and?"}]
    assert turns({"messages": rows}) == EXPECTED
    assert turns({"messages": rows[1:]}) == []
    assert turns({"messages": [{"role": "system", "content": "Be kind"}, *rows[:2]]})[0] == ("system", "Be kind")
    assert turns({"messages": [rows[0]]}) == []
    assert turns({"data": ["What is it?", "A thing.", "And?"]}) == EXPECTED
    assert turns({"prompt": "a", "response": "  "}) == []


OPENING = {"role": "system", "content": "Be kind"}
ANSWER = {"role": "assistant", "content": "Yes."}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [ANSWER, *MESSAGES["messages"]]}, "turn out of order"),
        ({"messages": [OPENING, OPENING, *MESSAGES["messages"]]}, "second system message"),
        ({"messages": [{"role": "critic", "content": "Hm"}, *MESSAGES["messages"]]}, "unknown role"),
        ({"messages": [{"role": "user", "content": None}, ANSWER]}, "turn that is not text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, ANSWER]}, "turn that is not text"),
        ({"messages": [{"role": "system", "content": 1}, *MESSAGES["messages"]]}, "turn that is not text"),
        ({"messages": [{"role": "user", "content": "What?"}, {"role": "assistant"}]}, "turn that is not text"),
        ({"messages": []}, "no answer"),
        ({"data": []}, "no answer"),
        ({"data": ["What?"]}, "no answer"),
        ({"data": ["What?", None]}, "turn that is not text"),
        ({"data": [{"a": 1}, "Yes."]}, "turn that is not text"),
        ({"prompt": "a", "response": None}, "turn that is not text"),
        ({"prompt": "a", "response": " "}, "empty turn"),
    ],
)
def test_what_is_left_out_is_counted(row: Any, reason: str) -> None:
    left = Left()
    assert from_row(row, "here", left) is None
    assert (left.refused, left.shortened) == ({reason: 1}, {})


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"role": "user", "content": 5}, "turn that is not text"),
        ({"role": "tool", "content": "5"}, "unknown role"),
        (OPENING, "second system message"),
        (ANSWER, "turn out of order"),
        ({"role": "user", "content": ""}, "empty turn"),
    ],
)
def test_ends_that_are_left_out_are_counted(turn: Any, reason: str) -> None:
    left = Left()
    conversation = from_row({"messages": [OPENING, *MESSAGES["messages"], turn], "ended": False}, "here", left)
    assert conversation is not None
    assert [message["content"] for message in conversation.messages] == ["Be kind", "What is it?", "A thing."]
    assert conversation.ended, "the answer before the cut was whole"
    assert (left.refused, left.shortened) == ({}, {reason: 1})


def test_conversations_under_data_are_read_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "data": [SHAREGPT, MESSAGES]}))
    assert [one.question for one in read([str(tmp_path / "a.json")])] == ["What is it?"] * 2
    (tmp_path / "a.json").write_text(json.dumps({**MESSAGES, "data": [{"source": "somewhere"}]}))
    assert [one.question for one in read([str(tmp_path / "a.json")])] == ["What is it?"]
    (tmp_path / "a.json").write_text(json.dumps(ULTRACHAT))
    assert [one.question for one in read([str(tmp_path / "a.json")])] == ["What is it?"]
    with pytest.raises(UserError, match="data of strings"):
        from_row({"data": [SHAREGPT]}, "here")


def test_half_characters_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"messages": [{"role": "system", "content": "s\\ude00"}, {"role": "user", "content": "q\\ud83d"}, '
        '{"role": "assistant", "content": "\\ud83d\\ude00"}]}\n'
    )
    (conversation,) = read([str(tmp_path / "a.jsonl")])
    assert [message["content"] for message in conversation.messages] == ["s\ufffd", "q\ufffd", "😀"]
    (tmp_path / "q.jsonl").write_text('{"question": "q\\ud83d"}\n')
    assert filters.read_questions([str(tmp_path / "q.jsonl")]) == ["q\ufffd"]


DEEP = "[" * 100_000


ROW = b'{"prompt": "a", "response": "b"}\n'
UNREADABLE = {
    "bad.jsonl": (ROW + b'\n{"prompt": \n', r"bad\.jsonl:3 cannot .*Expecting value, col"),
    "bad.json": (b'[\n{"prompt": "a"},\n]', r"bad\.json cannot be read as JSON .*line 2 col|line 3 col"),
    "lines.json": (ROW + b'{"pro', r"lines\.json:2 cannot be read as JSON"),
    "deep.jsonl": (DEEP.encode(), r"deep\.jsonl:1 cannot be read as JSON \(nested too deeply"),
    "deep.json": (DEEP.encode(), r"deep\.json cannot be read as JSON \(nested too deeply"),
    "latin.jsonl": (b'{"prompt": "\xe9"}', r"latin\.jsonl cannot be read .*utf-8"),
    "cut.jsonl.gz": (gzip.compress(ROW * 99)[:-20], r"cut\.jsonl\.gz cannot be read"),
    "cut.json.gz": (gzip.compress(ROW * 99)[:20], r"cut\.json\.gz cannot be read"),
    "other.json.gz": (gzip.compress(b"[" * 999)[:10] + b"\xff" * 40, r"other\.json\.gz cannot be read"),
    "no.json.gz": (b"no gzip", r"no\.json\.gz cannot be read"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    content, words = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    for source in (tmp_path / name, tmp_path):
        with pytest.raises(UserError, match=words):
            list(read([str(source)]))


def test_question_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 99)[:-9])
    (tmp_path / "b.txt").write_bytes(b"\xff")
    for name in ("a.jsonl.gz", "b.txt"):
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            filters.read_exclusion([str(tmp_path / name)], 8)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "What?"}\n'))
    assert filters.read_questions([str(tmp_path / "c.jsonl.gz")]) == ["What?"]


@pytest.mark.parametrize(
    ("row", "words"),
    [({"text": "a"}, "found text"), (["a"], "found list"), ({"messages": [{"a": 1}]}, "turns with role")],
)
def test_unknown_layouts_say_what_was_expected(row: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        from_row(row, "here")


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none at"):
        list(read([str(tmp_path / "no.jsonl")]))
    (tmp_path / "bad.jsonl").write_text('{"prompt": ')
    with pytest.raises(UserError, match="cannot be read as JSON"):
        list(read([str(tmp_path / "bad.jsonl")]))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="found none"):
        list(read([str(tmp_path / "empty.jsonl")]))


def test_a_hub_data_set_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"eagle-chat\[train\]"):
        list(read(["owner/name"]))


def test_a_question_is_known_by_its_words() -> None:
    one, other = from_row(PAIR, ""), from_row({**PAIR, "prompt": "  what IS it"}, "")
    assert one is not None
    assert other is not None
    assert question_hash(one) == question_hash(other)


def test_exclusion_by_words_in_a_row(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    row = {
        "question_id": 1,
        "turns": ["Compose an engaging travel blog post about a recent trip to Hawaii.", "Sing it."],
    }
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    exclusion = filters.read_exclusion([str(path)], 8)
    assert exclusion.hits("Please COMPOSE an engaging travel blog post, about a trip")
    assert not exclusion.hits("Compose an engaging travel blog post")  # seven words
    assert exclusion.hits("please sing it")  # a question shorter than eight words counts whole
    assert not exclusion.hits("Sing")
    both = {"messages": [*MESSAGES["messages"], {"role": "user", "content": "Sing it"}, MESSAGES["messages"][1]]}
    conversation = from_row(both, "")
    assert conversation is not None
    assert exclusion.refuses(conversation)
    with pytest.raises(UserError, match="--exclude"):
        filters.read_exclusion([str(tmp_path / "no")], 8)


def test_questions_that_are_not_text_are_none(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": None}, {"role": "user", "content": [{"text": "a"}]}, MESSAGES["messages"][0]]
    write_lines(tmp_path / "q.jsonl", [{"messages": turns}, {"messages": turns[:2]}])
    assert filters.read_questions([str(tmp_path / "q.jsonl")]) == ["What is it?"]


def test_plain_text_questions(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("What is one?\n\nWhat is two?\n")
    assert filters.read_questions([str(tmp_path / "q.txt")]) == ["What is one?", "What is two?"]


def test_loops() -> None:
    assert filters.loops([9, 8, 7, *[1] * 24])
    assert filters.loops([*range(50), *list(range(10)) * 3])
    assert not filters.loops([*range(50), *list(range(10)) * 2])
    assert not filters.loops([1] * 23)
    assert not filters.loops(list(range(200)))
    assert not filters.loops([])
    assert filters.loops([5, 6] * 12)
