"""The draft vocabulary of an EAGLE-3 head: which target ids its draft ids stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_chat.core.errors import HeadMismatchError


def draft_ids(d2t: Tensor | None, t2d: Tensor | None, draft_size: int, target_size: int) -> Tensor | None:
    """Target id of each draft id, int64 [Vd], or None where the vocabularies are one and the same.

    `d2t` [Vd]: offsets, target id = draft id + offset. `t2d` [V]: whether a target id can be drafted. Sizes Vd and V.
    HeadMismatchError where the two do not describe one map, with the reason.
    """
    if draft_size == target_size:
        return None
    if d2t is None:
        raise HeadMismatchError(
            f"a head with {draft_size} of the target's {target_size} tokens needs a map d2t, found none in its file: "
            "get the complete checkpoint"
        )
    if d2t.is_floating_point():
        raise _broken(f"whole numbers expected in d2t, found {d2t.dtype}")
    if d2t.shape != (draft_size,):
        raise _broken(f"{draft_size} offsets expected in d2t, found shape {tuple(d2t.shape)}")
    ids = torch.arange(draft_size) + d2t.long()
    if int(ids.min()) < 0 or int(ids.max()) >= target_size:
        raise _broken(
            f"target ids of 0 to {target_size - 1} expected from d2t, found {int(ids.min())}..{int(ids.max())}"
        )
    distinct = len(set(ids.tolist()))
    if distinct != draft_size:
        raise _broken(f"{draft_size} different target ids expected from d2t, found {distinct}")
    _check_mask(ids, d2t, t2d, target_size)
    return ids


def _check_mask(ids: Tensor, d2t: Tensor, t2d: Tensor | None, target_size: int) -> None:
    """HeadMismatchError where `t2d` marks other target ids than `ids`, or is missed where it would be needed."""
    if t2d is None:
        if not bool(d2t.any()):
            raise _broken("offsets expected in d2t, found only zeros and no t2d beside it")
        return
    if t2d.shape != (target_size,):
        raise _broken(f"one entry for each of {target_size} target ids expected in t2d, found {tuple(t2d.shape)}")
    if int(t2d.bool().sum()) != ids.shape[0] or not bool(t2d.bool()[ids].all()):
        raise _broken("d2t and t2d name different target ids (d2t must hold offsets, target id minus draft id)")


def _broken(what: str) -> HeadMismatchError:
    return HeadMismatchError(f"the head's draft vocabulary is inconsistent: {what}; get or export the head again")
