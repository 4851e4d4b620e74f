"""`eagle-chat models`: table, one entry, JSON, filter, fetching."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eagle_chat.cli import models
from eagle_chat.cli.app import main
from eagle_chat.core import registry


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["models", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_has_a_line_for_every_head(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 1 + sum(len(entry.heads) for entry in registry.entries().values())
    assert "official: a head of the EAGLE authors" in err
    row = next(line for line in lines if "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B" in line).split()
    assert row == ["llama-3.1-8b", "eagle3", "0.42B", "official", "-", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"]
    assert [line.split()[0] for line in lines if line.endswith("(on modelscope)")] == ["minicpm4-8b"]


@pytest.mark.parametrize(
    ("words", "aliases"),
    [
        (["vicuna"], {"vicuna-7b", "vicuna-13b", "vicuna-33b"}),
        (["AngelSlim", "a3b"], {"qwen3-30b-a3b"}),
        (["nvidia"], {"llama-4-maverick", "qwen3-235b-a22b", "gpt-oss-120b"}),
        (["official", "eagle3"], {"llama-3.1-8b", "llama-3.3-70b", "deepseek-r1-distill-llama-8b", "vicuna-13b"}),
        (["qwen3-8b"], {"qwen3-8b"}),
        (["mixtral"], {"mixtral"}),
        (["meta-llama/Llama-3.1-8B-Instruct"], {"llama-3.1-8b"}),
        (["Qwen3 8B"], {"qwen3-8b"}),
    ],
)
def test_words_choose(words: list[str], aliases: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert {entry.alias for entry in models.select(words)} == aliases
    code, out, _ = run(capsys, "--json", *words)
    assert code == 0
    assert {entry["alias"] for entry in json.loads(out)} == aliases


def test_json_has_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--json")
    found = {entry["alias"]: entry for entry in json.loads(out)}
    assert set(found) == set(registry.entries())
    qwen = found["qwen2-7b"]
    assert (qwen["dtype"], qwen["avoid"], qwen["official"]) == ("bfloat16", ["float16"], True)
    assert qwen["heads"][0] == {
        "repo": "yuhuili/EAGLE-Qwen2-7B-Instruct", "method": "eagle", "official": True, "parameters": 0.26,
        "tree": {"depth": 6, "top_k": 10, "total_tokens": 60}, "revision": "main", "host": "hub", "tau": None,
        "cached": False,
    }  # fmt: skip
    assert found["smollm2"]["heads"][0]["cached"] is True


def test_one_name_gets_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "qwen2-72b")
    assert (code, err) == (0, "")
    for word in ("Qwen/Qwen2-72B-Instruct", "official", "1.05B", "48 nodes", "never float16", "--draft-revision"):
        assert word in out
    assert "--trust-remote-code" in run(capsys, "minicpm4-8b")[1]


def test_a_wrong_name_gets_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "vicunna-13b")
    assert (code, out) == (2, "")
    assert "did you mean vicuna-13b" in err
    assert len(err.splitlines()) == 1
    code, _, err = run(capsys, "granite", "nvidia")
    assert code == 2
    assert "found 'granite nvidia'" in err


def test_pull_fetches_target_and_first_head(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr(models, "fetch_target", lambda *given: fetched.append(given))
    monkeypatch.setattr(models, "fetch_head", lambda *given: fetched.append(given))
    code, out, _ = run(capsys, "pull", "vicuna-13b")
    assert (code, out) == (0, "")
    assert fetched == [("lmsys/vicuna-13b-v1.3", "main"), ("yuhuili/EAGLE3-Vicuna1.3-13B", "main")]
    for words in ([], ["a", "b"], ["a/b"], ["vicunna"]):
        assert run(capsys, "pull", *words)[0] == 2
    assert len(fetched) == 2
