"""The table of names: complete, consistent, and kind to those who mistype."""

from __future__ import annotations

import dataclasses

import pytest

from eagle_chat.core import registry
from eagle_chat.core.chat import FSCHAT_FAMILIES
from eagle_chat.core.config import DtypeName, TreeConfig
from eagle_chat.core.errors import UserError

OFFICIAL = {
    "lmsys/vicuna-13b-v1.3": {"eagle3", "eagle"},
    "meta-llama/Llama-3.1-8B-Instruct": {"eagle3", "eagle"},
    "meta-llama/Llama-3.3-70B-Instruct": {"eagle3"},
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": {"eagle3"},
    "lmsys/vicuna-7b-v1.3": {"eagle"},
    "lmsys/vicuna-33b-v1.3": {"eagle"},
    "meta-llama/Llama-2-7b-chat-hf": {"eagle"},
    "meta-llama/Llama-2-13b-chat-hf": {"eagle"},
    "meta-llama/Llama-2-70b-chat-hf": {"eagle"},
    "mistralai/Mixtral-8x7B-Instruct-v0.1": {"eagle"},
    "meta-llama/Meta-Llama-3-8B-Instruct": {"eagle"},
    "meta-llama/Meta-Llama-3-70B-Instruct": {"eagle"},
    "Qwen/Qwen2-7B-Instruct": {"eagle"},
    "Qwen/Qwen2-72B-Instruct": {"eagle"},
}
"""The authors' own heads, by target, as their two tables have them."""

COMMUNITY = {
    "qwen2.5-14b": {"Zjcxy-SmartAI"},
    "llama-4-scout": {"lmsys"},
    "llama-4-maverick": {"lmsys", "nvidia"},
    "qwen3-1.7b": {"AngelSlim"},
    "qwen3-4b": {"AngelSlim"},
    "qwen3-8b": {"AngelSlim", "Tengyunw", "Zjcxy-SmartAI"},
    "qwen3-14b": {"AngelSlim"},
    "qwen3-30b-a3b": {"AngelSlim", "Tengyunw"},
    "qwen3-32b": {"AngelSlim", "Zjcxy-SmartAI"},
    "qwen3-235b-a22b": {"lmsys", "nvidia"},
    "minicpm4-8b": {"linglingdan"},
    "olmoe-1b-7b": {"wantsleep"},
    "granite-3.1-1b-a400m": {"wantsleep"},
    "gpt-oss-120b": {"lmsys", "nvidia"},
    "glm-4.7-flash": {"thoughtworks"},
}


def test_the_authors_heads_are_all_there_and_marked() -> None:
    found = {
        entry.target: {head.method for head in entry.heads if head.official} for entry in registry.entries().values()
    }
    assert {target: methods for target, methods in found.items() if methods} == OFFICIAL


def test_official_are_the_authors_alone() -> None:
    heads = [head for entry in registry.entries().values() for head in entry.heads]
    assert {head.repo.split("/")[0] for head in heads if head.official} == {"yuhuili"}
    assert not [head for head in heads if head.repo.startswith("yuhuili/") and not head.official]


@pytest.mark.parametrize("alias", COMMUNITY)
def test_heads_of_others(alias: str) -> None:
    entry = registry.entries()[alias]
    assert {head.repo.split("/")[0] for head in entry.heads} == COMMUNITY[alias]
    assert {head.method for head in entry.heads} == {"eagle" if alias == "qwen2.5-14b" else "eagle3"}
    assert not entry.official


def test_the_table_is_consistent() -> None:
    entries = list(registry.entries().values())
    names = [name for entry in entries for name in (entry.alias, *entry.names)]
    assert len(names) == len(set(names)) == len(registry.aliases())
    assert all(name == name.lower() and " " not in name and "_" not in name for name in names)
    repos = [head.repo for entry in entries for head in entry.heads]
    assert len(repos) == len(set(repos))
    assert len({entry.target for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.about
        assert entry.family
        assert entry.dtype is None or entry.dtype in DtypeName.__args__  # type: ignore[attr-defined]
        assert entry.template is None or entry.template in FSCHAT_FAMILIES
        assert "float16" not in entry.avoid or entry.dtype != "float16"


def test_qwen_never_in_float16() -> None:
    qwen = [entry for alias, entry in registry.entries().items() if alias.startswith("qwen")]
    assert len(qwen) == 10
    assert {(entry.dtype, entry.avoid) for entry in qwen} == {("bfloat16", ("float16",))}


def test_trees_are_those_of_the_papers() -> None:
    """Depth 6 and 60, 50 or 48 nodes for the older heads by the size of the target, depth 8 and 60 for EAGLE-3."""
    nodes = {}
    for entry in registry.entries().values():
        for head in entry.heads:
            tree = head.tree_config()
            if tree is None:
                assert head.repo.startswith("asset:")
                continue
            assert (tree.policy, tree.top_k) == ("dynamic", 10)
            assert tree.depth == (8 if head.method == "eagle3" else 6)
            if head.method == "eagle3":
                assert tree.total_tokens == 60
            else:
                nodes[entry.alias] = tree.total_tokens
    assert nodes["llama-3-instruct"] == nodes["llama-2-7b"] == 60
    assert nodes["vicuna-13b"] == nodes["llama-2-13b"] == nodes["qwen2.5-14b"] == 50
    assert nodes["llama-3-70b"] == nodes["llama-2-70b"] == nodes["qwen2-72b"] == 48
    assert registry.Head("a/b", "eagle").tree_config() is None


@pytest.mark.parametrize(
    ("said", "target"),
    [
        ("llama-3-instruct", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Llama 3.1 8B Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("VICUNA_13B", "lmsys/vicuna-13b-v1.3"),
        ("qwen3-8b", "Qwen/Qwen3-8B"),
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_names_as_people_say_them(said: str, target: str) -> None:
    entry = registry.lookup(said)
    assert entry is not None
    assert entry.target == target
    assert registry.is_alias(said) == ("/" not in said)


def test_a_hub_id_that_is_not_known_is_left_alone() -> None:
    assert registry.lookup("someone/some-model") is None


@pytest.mark.parametrize(
    ("said", "near"),
    [
        ("lama-3-instruct", "llama-3-instruct"),
        ("vicuna13b", "vicuna-13b"),
        ("qwen-3-8b", "qwen3-8b"),
        ("mixtrall", "mixtral"),
        ("deepseek-r1", "deepseek-r1-8b"),
        ("smolm2", "smollm2"),
    ],
)
def test_a_wrong_name_gets_near_matches(said: str, near: str) -> None:
    with pytest.raises(UserError, match=f"found '{said}': did you mean .*") as caught:
        registry.lookup(said)
    guesses = str(caught.value).rpartition("did you mean ")[2].rstrip("?").split(", ")
    assert near in guesses
    assert len({registry.aliases()[guess].alias for guess in guesses}) == len(guesses) <= 3


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(UserError, match="known aliases: smollm2, llama-3-instruct"):
        registry.lookup("zzzzzzzz")


def test_a_head_is_found_by_its_id() -> None:
    head = registry.find_head("yuhuili/EAGLE-Vicuna-13B-v1.3")
    assert head is not None
    assert (head.official, head.method, head.parameters) == (True, "eagle", 0.37)
    assert head.tree_config() == TreeConfig("dynamic", 6, 10, 50)
    assert registry.find_head("someone/head") is None


def test_an_unknown_field_of_the_table_would_be_noticed() -> None:
    known = {item.name for item in dataclasses.fields(registry.Entry)}
    assert "names" in known
    with pytest.raises(TypeError):
        registry._entry("x", {"target": "a/b", "nick": "y"})
