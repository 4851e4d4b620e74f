"""Corpora made by a tiny target: kinds evened out, filters, resuming after a kill."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core.errors import UserError
from eagle_chat.core.files import sole_writer
from eagle_chat.training import conversations
from eagle_chat.training.config import CorpusConfig
from eagle_chat.training.corpus import make_corpus
from eagle_chat.training.prepare import load_target
from eagle_chat.training.questions import OPENINGS, opening, user_header
from eagle_chat.training.shards import Shards
from eagle_chat.training.summary import coverage, refusals, summarise
from tests.training.families import family
from tests.training.tiny_run import save_target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny target that ends its turns, and its chat."""
    folder = tmp_path_factory.mktemp("target")
    save_target(folder, brief=True)
    return load_target(settings(folder, base=str(folder)))


def settings(folder: Path, **changes: Any) -> CorpusConfig:
    fields: dict[str, Any] = {
        "out": str(folder / "corpus"), "base": "tiny", "answers": 16, "batch": 14, "max_question_tokens": 60,
        "max_new_tokens": 20, "min_answer_tokens": 2, "min_question_words": 1, "question_temperature": 1.5,
        "question_min_p": 0.0, "temperatures": (0.7, 1.0), "device": "cpu", "seed": 3,
    }  # fmt: skip
    return CorpusConfig(**{**fields, **changes})


def silent(*_: Any) -> None:
    """Says nothing."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(Shards(folder / "corpus").rows())


def test_a_killed_run_ends_with_the_rows_of_a_whole_one(made: Any, tmp_path: Path) -> None:
    whole, parts = settings(tmp_path / "a"), settings(tmp_path / "b")
    assert make_corpus(whole, *made, silent) == 16
    expected = rows_of(tmp_path / "a")
    assert len(expected) == 16
    killed_after = 1

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        if Shards(Path(parts.out)).count() >= killed_after:
            raise Killed

    with pytest.raises(Killed):
        make_corpus(parts, *made, kill)
    # What a kill in the middle of writing leaves: a temporary file, and a note without its rows.
    (Path(parts.out) / ".part-00001.jsonl-x.tmp").write_text('{"mess')
    (Path(parts.out) / "part-00001.json").write_text("{}")
    assert make_corpus(parts, *made, silent) == 16
    assert rows_of(tmp_path / "b") == expected
    assert not list(Path(parts.out).glob(".*.tmp"))
    assert make_corpus(parts, *made, silent) == 16  # nothing left to do


def test_a_folder_has_one_writer(made: Any, tmp_path: Path) -> None:
    config = settings(tmp_path)
    with sole_writer(Path(config.out)), pytest.raises(UserError, match="another run at work"):
        make_corpus(config, *made, silent)
    assert [path.name for path in Path(config.out).iterdir()] == [".lock"]


def test_rows_are_conversations_with_kinds_and_temperatures(made: Any, tmp_path: Path) -> None:
    make_corpus(settings(tmp_path), *made, silent)
    rows = rows_of(tmp_path)
    assert {row["temperature"] for row in rows} == {0.7, 1.0}
    assert len({row["kind"] for row in rows}) > 5
    questions = [row["messages"][0]["content"] for row in rows]
    assert len({conversations.normalised(question) for question in questions}) == len(questions)
    for row in rows:
        starts = [words for words in OPENINGS[row["kind"]] if row["messages"][0]["content"].startswith(words)]
        assert starts
    found = list(conversations.read([str(tmp_path / "corpus")]))
    assert [one.ended for one in found] == [row["ended"] for row in rows]
    summary = summarise(found, made[1])
    assert summary.tokens == sum(row["tokens"] for row in rows)
    assert summary.distinct_questions == 16
    assert 0 < summary.coverage[1024] <= 1.0
    assert "answer tokens" in summary.lines()[0]


def test_other_settings_are_refused_and_more_answers_are_not(made: Any, tmp_path: Path) -> None:
    make_corpus(settings(tmp_path, answers=5), *made, silent)
    with pytest.raises(UserError, match=r"seed 3 \(now 4\)"):
        make_corpus(settings(tmp_path, answers=5, seed=4), *made, silent)
    assert make_corpus(settings(tmp_path, answers=8), *made, silent) == 8


@pytest.mark.parametrize("steps", [(1, 3, 9), (8, 16)])
@pytest.mark.parametrize("from_files", [False, True], ids=["written", "from files"])
def test_more_answers_later_are_those_of_the_whole(
    made: Any, tmp_path: Path, steps: tuple[int, ...], from_files: bool
) -> None:
    changes: dict[str, Any] = {"answers": steps[-1], "batch": 7}
    if from_files:  # with duplicates across and inside of batches, and rows that hold nothing
        rows: list[Any] = [{"messages": pair(f"Question {at % 30}?", "An answer.")} for at in range(60)]
        rows[5:5] = rows[40:40] = [{"messages": []}]
        (tmp_path / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        changes["source"] = (str(tmp_path / "source.jsonl"),)
    whole, parts = (settings(tmp_path / name, **changes) for name in ("whole", "parts"))
    expected = make_corpus(whole, *made, silent)
    for answers in steps:
        have = make_corpus(dataclasses.replace(parts, answers=answers), *made, silent)
        assert have == min(answers, expected)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    assert known(tmp_path / "parts") == known(tmp_path / "whole")
    if from_files:
        for one in (whole, parts):
            assert make_corpus(dataclasses.replace(one, answers=0), *made, silent) == 30
        assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
        assert refusals(Shards(Path(parts.out)).notes()) == {"duplicate question": 30, "no answer": 2}


def known(folder: Path) -> list[dict[str, Any]]:
    """The notes without their times."""
    return [{**note, "seconds": 0} for note in Shards(folder / "corpus").notes()]


def test_more_answers_after_a_kill_while_the_last_shard_is_made_again(made: Any, tmp_path: Path) -> None:
    whole, parts = settings(tmp_path / "whole", answers=10), settings(tmp_path / "parts", answers=3)
    make_corpus(whole, *made, silent)
    make_corpus(parts, *made, silent)
    Shards(Path(parts.out)).drop_last()
    make_corpus(dataclasses.replace(parts, answers=10), *made, silent)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")


@pytest.mark.parametrize("batch", [1, 2, 14])
def test_a_corpus_without_anything_says_why(made: Any, tmp_path: Path, batch: int) -> None:
    rows = [{"messages": pair("Short?", "a")}, {"messages": pair("Short 2?", "b")}, {"data": ["Only this"]}]
    (tmp_path / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = settings(tmp_path, source=(str(tmp_path / "source.jsonl"),), answers=0, batch=batch)
    for _ in range(2):  # also where it is started again
        with pytest.raises(UserError, match=r"found none among 3 \(refused: 2 answer too short, 1 no answer\): change"):
            make_corpus(config, *made, silent)
    with pytest.raises(UserError, match=r"conversations expected in .*corpus, found none"):
        list(conversations.read([config.out]))
    for shard in Path(config.out).glob("part-*.jsonl"):
        shard.unlink()
    with pytest.raises(UserError, match=r"conversations expected in .*corpus, found none"):
        list(conversations.read([config.out]))  # its settings and notes are no data


@pytest.mark.parametrize("source", ["corpus", "corpus/part-00000.jsonl", "corpus/../corpus"])
def test_a_corpus_is_not_made_from_itself(tmp_path: Path, source: str) -> None:
    with pytest.raises(UserError, match="a source outside the corpus's own folder"):
        settings(tmp_path, source=(str(tmp_path / source),))


def test_ends_of_conversations_that_are_left_out_are_counted(made: Any, tmp_path: Path) -> None:
    rows = [
        {"messages": [*pair("One?", "An answer."), {"role": "tool", "content": "x"}, *pair("Two?", "Another.")]},
        {"messages": pair("Three?", "An answer.")},
    ]
    (tmp_path / "source.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = settings(tmp_path, source=(str(tmp_path / "source.jsonl"),), answers=0)
    assert make_corpus(config, *made, silent) == 2
    notes = Shards(tmp_path / "corpus").notes()
    assert refusals(notes, "shortened") == {"unknown role": 1}
    assert refusals(notes) == {}


def write_source(path: Path) -> Path:
    long = "one two three four five six seven eight"
    texts = ["Hello?", "hello", "Who?", f"Well, {long} nine", "Last?"]
    rows = [{"messages": [*pair(text, "An answer."), *pair("More", "Another.")]} for text in texts]
    rows.append({"messages": pair("Loop?", "ab" * 20)})
    rows.append({"messages": pair("Short?", "a")})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (path.parent / "exclude.txt").write_text(f"{long}\n")
    return path


def pair(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_files_are_filtered(made: Any, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source.jsonl")
    config = settings(tmp_path, source=(str(source),), answers=0, batch=2, exclude=(str(tmp_path / "exclude.txt"),))
    assert make_corpus(config, *made, silent) == 3
    assert [row["messages"][0]["content"] for row in rows_of(tmp_path)] == ["Hello?", "Who?", "Last?"]
    assert refusals(Shards(tmp_path / "corpus").notes()) == Counter(
        {"duplicate question": 1, "excluded question": 1, "answer loops": 1, "answer too short": 1}
    )
    kept = dataclasses.replace(config, out=str(tmp_path / "loops"), keep_loops=True)
    assert make_corpus(kept, *made, silent) == 4


def test_regenerated_answers_are_the_targets_own(made: Any, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source.jsonl")
    config = settings(
        tmp_path, source=(str(source),), regenerate=True, answers=0, temperatures=(0.0,), min_answer_tokens=1,
        keep_loops=True,
    )  # fmt: skip
    make_corpus(config, *made, silent)
    target, chat = made
    rows = rows_of(tmp_path)
    assert rows
    for row in rows:
        messages = row["messages"]
        from tests.tiny import generate

        prompt = chat.encode(messages[:1])
        ids = generate(target.model, prompt, config.max_new_tokens)
        end = next((at for at, token in enumerate(ids) if token in chat.stop_ids), len(ids))
        assert messages[1]["content"] == chat.decode(ids[:end])
        assert row["ended"] == (end < len(ids)) or len(messages) > 2


def test_openings_are_evened_out() -> None:
    counts = Counter(opening(number).kind for number in range(140))
    assert set(counts.values()) == {10}
    words = Counter(opening(number).words for number in range(14 * 66) if opening(number).kind == "writing")
    assert max(words.values()) - min(words.values()) <= 1


@pytest.mark.parametrize("name", ["chatml", "llama-3", "llama-2"])
def test_the_user_header_comes_from_the_template(name: str) -> None:
    chat = family(name)
    header = user_header(chat)
    assert chat.prompt([{"role": "user", "content": "XYZ"}]).startswith(header + "XYZ")


def test_coverage() -> None:
    assert coverage(Counter({1: 6, 2: 3, 3: 1}), (1, 2, 8)) == {1: 0.6, 2: 0.9, 8: 1.0}
