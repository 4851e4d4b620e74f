from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle_chat.cli import session
from eagle_chat.cli.session import Saved
from eagle_chat.core import recording
from eagle_chat.core.conversation import Conversation, Turn
from eagle_chat.core.errors import UserError
from tests.cli.conftest import Program
from tests.cli.test_chat import Typed, contents
from tests.cli.views import events, told


def conversation() -> Conversation:
    first = Turn("one [b] é 好 \ud83d", "answer\n", [1, 2], "stop", "smollm2", 3, "2 tok", events())
    return Conversation("Be brief.", [first, Turn("two", "part", [5], "length", "smollm2")])


@pytest.mark.parametrize("with_events", [True, False])
def test_what_is_saved_is_loaded(tmp_path: Path, with_events: bool) -> None:
    saved = Saved(conversation(), "smollm2", {"temperature": 0.7, "stop": ["x"]}, "three?", True)
    session.save(tmp_path / "c.json", saved, with_events)
    if not with_events:
        saved.conversation.turns[0].events.clear()
    assert session.load(tmp_path / "c.json") == saved
    assert (tmp_path / "c.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "found no JSON"),
        ("{}", "found another kind of file"),
        ('{"type": "eagle-chat conversation", "version": 2}', "version 1 of the format expected, found 2"),
        ('{"type": "eagle-chat conversation", "version": 1}', "is not a whole conversation"),
        ('{"type": "eagle-chat conversation", "version": 1, "turns": [{"question": 1}]}', "is not a whole"),
        ('{"type": "eagle-chat conversation", "version": 1, "turns": [{"x": 1}]}', "is not a whole"),
    ],
)
def test_what_is_no_conversation_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(UserError) as caught:
        session.load(tmp_path / "c.json")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_messages() -> None:
    assert contents([dict(m) for m in conversation().messages("?")]) == [  # type: ignore[arg-type]
        "system: Be brief.", "user: one [b] é 好 \ud83d", "assistant: answer\n", "user: two", "assistant: part",
        "user: ?",
    ]  # fmt: skip


def asked(program: Program, *lines: str, **script: object) -> list[list[str]]:
    ran = program(stdin=Typed("\n".join(lines) + "\n"), **script)
    assert ran.code == 0
    return [contents(messages) for messages in ran.engine.asked]


def test_turns_are_taken_back_and_asked_again(program: Program) -> None:
    first = ["user: one", "assistant: Hello world."]
    assert asked(program, "one", "two", "/undo", "three")[-1] == [*first, "user: three"]
    assert asked(program, "one", "two", "/edit other")[-1] == [*first, "user: other"]
    assert asked(program, "one", "two", "/edit", "other")[-1] == [*first, "user: other"]
    # A command in its place leaves the conversation as it was.
    assert asked(program, "one", "/edit", "/stats", "other")[-1] == [*first, "user: other"]
    assert asked(program, "one", "two", "/regen", "next")[-1] == [
        *first, "user: two", "assistant: Hello world.", "user: next",
    ]  # fmt: skip
    assert asked(program, "/system S", "one", "/clear", "two")[-1] == ["system: S", "user: two"]
    assert asked(program, "/system S", "/system default", "one")[-1] == ["user: one"]


def test_regen_takes_another_seed_where_that_makes_a_difference(program: Program) -> None:
    ran = program("--temperature", "1", "--seed", "5", stdin="one\n/regen\n/regen\ntwo\n")
    assert [sampling.seed for sampling in ran.engine.sampling] == [5, 6, 7, 5]
    ran = program(stdin="one\n/regen\n")
    assert [sampling.seed for sampling in ran.engine.sampling] == [0, 0]
    assert "temperature 0 gives the same answer" in ran.err


def test_continue_goes_on_from_the_very_tokens(program: Program) -> None:
    ran = program(stdin="one\n/continue\ntwo\n", reason="length", pieces=["ab", "cd"])
    assert ran.engine.continued == [[3, 100, 101, 101]]
    assert contents(ran.engine.asked[-1]) == ["user: one", "assistant: abcdabcd", "user: two"]


def test_set_reaches_the_engine(program: Program) -> None:
    ran = program(
        stdin="/set temperature=0.7 total_tokens=16\n/set stop=a b\n/set policy=chain\none\n/draft off\ntwo\n"
    )
    sampling, tree = ran.engine.sampling[0], ran.engine.trees[0]
    assert (sampling.temperature, sampling.stop) == (0.7, ("a b",))
    assert (tree.policy, tree.total_tokens) == ("chain", 16)
    assert ran.engine.trees[1].policy == "none"
    ran = program(stdin="/set temperature=0.7\n/set temperature=default\n/set temperature=x\n/set seed\none\n/set\n")
    assert ran.engine.sampling[0].temperature == 0.0
    assert "error: temperature: " in ran.err
    assert "error: a value expected" in ran.err
    assert "max_new_tokens=512" in ran.err
    assert ran.code == 2


def test_compare_runs_both_with_the_same_seed(program: Program) -> None:
    ran = program("--seed", "9", stdin="one\n/compare\n/compare other\n")
    assert [tree.policy for tree in ran.engine.trees] == [None, "none", None, "none", None]
    assert {sampling.seed for sampling in ran.engine.sampling} == {9}
    assert [contents(messages)[-1] for messages in ran.engine.asked[1:]] == ["user: one"] * 2 + ["user: other"] * 2
    assert contents(ran.engine.asked[3])[0] == "user: one"
    assert ran.err.count("same text: yes") == 2


def test_commands_that_need_an_answer_say_so(program: Program) -> None:
    commands = ["/regen", "/undo", "/edit", "/continue", "/stats", "/tree", "/compare", "/export x.md", "/save"]
    ran = program(stdin=Typed("\n".join(commands) + "\n"))
    assert ran.err.count("error: ") == len(commands)
    assert ran.engine.asked == []


def test_export(program: Program, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.md", "a.json", "a.jsonl", "a.html", "a.md", "a.txt")]
    record = str(tmp_path / "own.jsonl")
    lines = ["one", *(f"/export {name}" for name in names)]
    ran = program("--record", record, stdin="\n".join(lines) + "\n")
    assert ran.err.count("written: ") == 4
    assert "is there already" in ran.err
    assert "a name that ends in .md, .json, .html, .jsonl expected" in ran.err
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer["messages"] == [
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "Hello world."},
    ]  # fmt: skip
    assert answer["answers"][0]["tau"] == 2.0
    assert (tmp_path / "a.jsonl").read_text() == Path(record).read_text()
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>\n<!-- eagle-chat")
    assert '"question":"one"' in page
    (run,) = recording.read(tmp_path / "a.jsonl")
    assert told(run.events).text == "Hello world."


def test_saved_and_taken_up_with_everything(program: Program) -> None:
    program(stdin=Typed("/set temperature=0.7\n/system S\none\n/draft off\n/save a b\n"))
    ran = program(stdin=Typed("/load\n/load a b\ntwo\n"))
    assert "saved conversations: a b" in ran.err
    assert contents(ran.engine.asked[0]) == ["system: S", "user: one", "assistant: Hello world.", "user: two"]
    assert (ran.engine.sampling[0].temperature, ran.engine.trees[0].policy) == (0.7, "none")
    ran = program(stdin=Typed("/load previous\n/load last\n/load nothing\n"))
    assert ran.err.count("taken up: ") == 2
    assert "error: a saved conversation expected" in ran.err


def test_a_pipe_leaves_nothing_behind(program: Program, tmp_path: Path) -> None:
    program(stdin="one\n")
    assert not (tmp_path / "state").exists()


def test_files_of_others_are_not_written_over(program: Program, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    ran = program(stdin=f"one\n/save {other}\n/save last\n/export {other}\n")
    assert ran.err.count("error: ") == 3
    assert program("--record", str(other), stdin="one\n").code == 2
    assert other.read_text() == "mine"
    assert program("--record", str(tmp_path / "r"), stdin="one\n").code == 0
    assert program("--record", str(tmp_path / "r"), stdin="two\n").code == 0
    assert [run.question for run in recording.read(tmp_path / "r")] == ["two"]
