"""An `eagle` head over part of the vocabulary drafts from that part, and the text stays the target's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.trimming import frequent_ids, trim
from tests import tiny


def test_logits_are_those_of_the_full_head_at_the_chosen_tokens() -> None:
    target = tiny.make_target("llama")
    full, trimmed = tiny.make_head("eagle", target), tiny.make_head("eagle", target)
    note = trim(trimmed, target, "40", stop_ids=[96])
    ids = [*range(40), 96]
    hidden = torch.randn(3, tiny.HIDDEN)
    torch.testing.assert_close(trimmed.logits(hidden), full.logits(hidden)[:, ids])
    assert trimmed.target_ids(torch.tensor([0, 39, 40])).tolist() == [0, 39, 96]
    assert trimmed.spec.draft_vocab_size == 41
    assert note == "the draft vocabulary is 41 of the target's 97 tokens"


@pytest.mark.parametrize("policy", ["dynamic", "chain", "static"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(policy: str, temperature: float) -> None:
    target, prompt = tiny.make_target("llama"), tiny.prompts(1)[0]
    sampling = SamplingConfig(temperature, seed=2, max_new_tokens=32)
    expected = tiny.answer(tiny.make_engine(target), prompt, sampling=sampling)
    head = tiny.make_head("eagle", target)
    trim(head, target, "30", stop_ids=[])
    tree = TreeConfig(policy, depth=None if policy == "static" else 3)  # type: ignore[arg-type]
    events = list(tiny.make_engine(target, head).stream(prompt, sampling=sampling, tree=tree, trace=True))
    assert tiny.tokens_of(events) == expected
    drafted = [node.token_id for event in events if event.type == "drafted" for node in event.nodes[1:]]
    assert drafted
    assert max(drafted) < 30


def test_a_file_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_text(json.dumps([5, 3, 5]))
    assert frequent_ids(str(path), 97, [7]).tolist() == [3, 5, 7]
    assert frequent_ids("3", 97, [1, 7]).tolist() == [0, 1, 2, 7]


@pytest.mark.parametrize("content", ["[]", "[-1]", "[97]", '["a"]', "[true]", "{}", "{", None])
def test_what_names_no_tokens_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ids.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match="draft-vocab"):
        frequent_ids(str(path), 97, [])


@pytest.mark.parametrize("number", ["0", "98"])
def test_numbers_that_make_no_vocabulary_are_refused(number: str) -> None:
    with pytest.raises(UserError, match="0 to 96 expected"):
        frequent_ids(number, 97, [])


def test_heads_with_their_own_vocabulary_are_refused() -> None:
    target = tiny.make_target("llama")
    with pytest.raises(UserError, match="eagle3 head"):
        trim(tiny.make_head("eagle3", target), target, "30", stop_ids=[])
