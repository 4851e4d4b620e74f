from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.bench.prompts import BUILTIN, Question, read_questions, select
from eagle_chat.core.errors import UserError


def test_builtin_set_has_forty_questions_in_eight_categories() -> None:
    questions = read_questions(BUILTIN)
    assert Counter(question.category for question in questions) == dict.fromkeys(
        ("writing", "reasoning", "coding", "math", "extraction", "translation", "summarising", "explaining"), 5
    )
    assert len({question.turns[0] for question in questions}) == 40
    assert sum(len(question.turns) == 2 for question in questions) == 16


def write(path: Path, *lines: Any) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_the_formats_of_mt_bench_and_spec_bench_are_read(tmp_path: Path) -> None:
    source = write(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["a", "b\u2028c"], "reference": ["x", "y"]},
        "",
        json.dumps({"question_id": "gsm-1", "category": "math", "turns": ["é\u2028"]}, ensure_ascii=False),
    )
    assert read_questions(source) == [
        Question(81, "writing", ("a", "b\u2028c")),
        Question("gsm-1", "math", ("é\u2028",)),
    ]


GOOD = {"question_id": 1, "category": "c", "turns": ["t"]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "one JSON object a line expected"),
        ([1], "a JSON object expected"),
        ({"category": "c", "turns": ["t"]}, "add question_id"),
        ({}, "an empty object"),
        ({**GOOD, "question_id": True}, "question_id must be"),
        ({**GOOD, "question_id": None}, "question_id must be"),
        ({**GOOD, "category": ""}, "category must be"),
        ({**GOOD, "turns": []}, "turns must be"),
        ({**GOOD, "turns": "t"}, "turns must be"),
        ({**GOOD, "turns": ["t", " "]}, "turns must be"),
        ({**GOOD, "turns": ["t \ud83d"]}, "half a character"),
        ("[" * 100_000, "one JSON object a line expected"),
        (GOOD, "stands there twice"),
    ],
)
def test_a_bad_line_is_told_in_one_line_with_its_number(tmp_path: Path, line: Any, said: str) -> None:
    source = write(tmp_path / "q.jsonl", GOOD, line)
    with pytest.raises(UserError, match=r"q\.jsonl:2: .*") as caught:
        read_questions(source)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="check --questions"):
        read_questions(str(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="check --questions"):
        read_questions(str(tmp_path))
    (tmp_path / "latin").write_bytes(b"\xe9\n")
    with pytest.raises(UserError, match="UTF-8"):
        read_questions(str(tmp_path / "latin"))
    with pytest.raises(UserError, match="empty file"):
        read_questions(write(tmp_path / "empty", "", " "))


def test_few_questions_are_spread_over_the_categories() -> None:
    questions = read_questions(BUILTIN)
    assert [question.id for question in select(questions, 8)] == [1, 6, 11, 16, 21, 26, 31, 36]
    assert [question.id for question in select(questions, 10)] == [1, 2, 6, 7, 11, 16, 21, 26, 31, 36]
    assert select(questions, None) == select(questions, 99) == questions
    with pytest.raises(UserError, match="--limit 0"):
        select(questions, 0)
