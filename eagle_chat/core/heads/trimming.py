"""A trimmed draft vocabulary for `eagle` heads, which read the target's own LM head.

At every level of a draft that matrix costs as much as it costs the target, and most of its rows are tokens that
hardly ever come. Restricted to the frequent ones it is a fraction of that. The target still says what is accepted, so
nothing but the number of accepted tokens can change: a token outside is never drafted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.eagle import EagleHead
from eagle_chat.core.target import Target


def trim(head: DraftHead, target: Target, asked: str, stop_ids: Iterable[int]) -> str:
    """Restrict the head to the tokens of `asked` (see `frequent_ids`) and the stop ids; a note for people.

    UserError for heads that have a draft vocabulary of their own.
    """
    if not isinstance(head, EagleHead):
        raise UserError(
            f"a draft vocabulary can be given to eagle heads, found an {head.spec.architecture} head, which has its "
            "own: leave --draft-vocab out"
        )
    ids = frequent_ids(asked, target.vocab_size, stop_ids)
    head.draft_ids = ids.to(head.device)
    head.trimmed_lm_head = target.lm_head_part(ids)
    head.spec = dataclasses.replace(head.spec, draft_vocab_size=ids.shape[0])
    return f"the draft vocabulary is {ids.shape[0]} of the target's {target.vocab_size} tokens"


def frequent_ids(asked: str, vocab_size: int, stop_ids: Iterable[int]) -> Tensor:
    """Target ids, ascending, int64 [Vd]. `asked` is a number N, for the ids 0 to N-1: vocabularies made by merging
    pairs number the pairs by their frequency; or a JSON file with a list of ids. Stop ids are always among them.
    UserError for numbers and files that give no such list.
    """
    chosen = range(int(asked)) if asked.isdecimal() else _read(Path(asked).expanduser())
    ids = sorted({*chosen, *stop_ids})
    if not chosen or ids[0] < 0 or ids[-1] >= vocab_size:
        found = f"{ids[0]} to {ids[-1]}" if ids and chosen else "none"
        raise UserError(
            f"some token ids of 0 to {vocab_size - 1} expected as draft vocabulary, found {found}: change --draft-vocab"
        )
    return torch.tensor(ids)


def _read(path: Path) -> list[int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"a number of tokens or a JSON file with a list of ids expected, found {str(path)!r} ({error}): change "
            "--draft-vocab"
        ) from error
    if not isinstance(found, list) or not all(type(item) is int for item in found):
        raise UserError(f"a list of token ids expected in {path}, found something else: change --draft-vocab")
    return found
