"""What views see of a cycle: the tree that was drafted and the walk that was made through it."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_chat.core import sampling
from eagle_chat.core.chat import Chat
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.events import Drafted, DraftNode, Origin, Status, Verified, VerifiedNode
from eagle_chat.core.masks import depths
from eagle_chat.core.tree import DraftTree, Drawn
from eagle_chat.core.verification import Acceptance


def origins(accepted: int, kept: int) -> list[Origin]:
    """Where each kept token came from: the accepted drafts first, then the target's own."""
    return ["draft" if place < accepted else "target" for place in range(kept)]


def drafted(cycle: int, tree: DraftTree, chat: Chat) -> Drafted:
    """Every node considered, the root first."""
    drawn = tree.drawn or Drawn([], [], [], [], [], [])
    root = DraftNode(0, -1, 0, tree.tokens[0], chat.token_text(tree.tokens[0]), 1.0, 0.0, 0, "kept", 0)
    levels = depths([-1, *drawn.parents])
    log_q = torch.tensor(drawn.log_q).exp().tolist()
    nodes = [
        DraftNode(
            id=index + 1,
            parent=drawn.parents[index],
            depth=levels[index + 1],
            token_id=token,
            text=chat.token_text(token),
            q=log_q[index],
            value=drawn.values[index],
            rank=drawn.ranks[index],
            stage="kept" if drawn.slots[index] >= 0 else "expanded",
            slot=drawn.slots[index],
        )
        for index, token in enumerate(drawn.tokens)
    ]
    return Drafted(cycle, [root, *nodes])


def verified(
    cycle: int, tree: DraftTree, logits: Tensor, acceptance: Acceptance, config: SamplingConfig, chat: Chat
) -> Verified:
    """What the target made of every node. `logits` [N, V]."""
    scores = logits.float() if config.greedy else sampling.warp(logits, config)
    log_p = scores.log_softmax(dim=-1)
    parents = torch.tensor(tree.parents[1:], dtype=torch.int64, device=logits.device)
    tokens = torch.tensor(tree.tokens[1:], dtype=torch.int64, device=logits.device)
    probabilities = [1.0, *log_p[parents, tokens].exp().tolist()]
    on_path = set(acceptance.path)
    nodes = []
    for slot, parent in enumerate(tree.parents):
        status: Status = "accepted" if slot in on_path else "rejected" if parent in on_path else "unreached"
        choice = acceptance.choices.get(slot)
        text = None if choice is None else chat.token_text(choice)
        nodes.append(VerifiedNode(slot, probabilities[slot], status, choice, text, acceptance.uniforms.get(slot)))
    return Verified(cycle, nodes, acceptance.path, acceptance.bonus, chat.token_text(acceptance.bonus))
