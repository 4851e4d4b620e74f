"""The loss against the formula written out, position by position; and what bears none."""

from __future__ import annotations

import pytest
import torch

from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.target import Target
from eagle_chat.training.features import Batch, Teacher, run_target
from eagle_chat.training.initialise import empty_head
from eagle_chat.training.objectives import Objective, Weights, acceptance
from eagle_chat.training.unroll import unroll, unrolled_attention
from tests.tiny import VOCAB, make_head, make_target, prompts

STEPS = 3


def parts(kind: str, draft_vocab: int = 50) -> tuple[Target, DraftHead, Objective, Batch]:
    target = make_target()
    found = make_head(kind, target, draft_vocab=draft_vocab if kind == "eagle3" else VOCAB)
    head = empty_head(found.spec, target, found.draft_ids)
    head.load_state_dict(found.state_dict())
    tokens = torch.tensor(prompts(2, 11))
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[0, 4:9] = True
    mask[1, 2:4] = True
    mask[1, 9:] = True
    batch = run_target(target, tokens, mask, head.spec.taps)
    return target, head, Objective(head, Teacher(target, head.draft_ids), Weights()), batch


@torch.no_grad()
def test_eagle3_loss_is_the_formula() -> None:
    target, head, objective, batch = parts("eagle3")
    loss, counts = objective(batch, STEPS)
    logits = target.model(input_ids=batch.tokens).logits
    ids = head.draft_ids.tolist()
    with unrolled_attention(head):
        outputs = list(unroll(head, batch.tokens, head.fuse(batch.features), STEPS))
    expected, judged = 0.0, [0] * STEPS
    for step, output in enumerate(outputs):
        terms = []
        for row in range(2):
            for at in range(batch.tokens.shape[1]):
                if at + 2 + step >= batch.tokens.shape[1] or not batch.mask[row, at + 2 + step]:
                    continue
                judged[step] += 1
                law = logits[row, at + 1 + step]
                if int(law.argmax()) in ids:
                    own = head.logits(output[row, at]).log_softmax(-1)
                    terms.append(float(-(law[ids].softmax(-1) * own).sum()))
        expected += 0.8**step * sum(terms) / max(1, len(terms))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert counts[:, 0].tolist() == judged
    # The first two tokens have no entry two before them.
    assert judged[0] == int(batch.mask[:, 2:].sum())


@torch.no_grad()
def test_eagle_loss_is_the_formula() -> None:
    target, head, objective, batch = parts("eagle")
    loss, _ = objective(batch, 1)
    final = target.model(input_ids=batch.tokens, output_hidden_states=True).hidden_states[-1]
    with unrolled_attention(head):
        (output,) = unroll(head, batch.tokens, batch.features, 1)
    at = batch.mask[:, 2:].nonzero(as_tuple=True)
    predicted, wanted = output[at], final[:, 1:][at]
    unit = wanted.pow(2).mean().sqrt()
    regression = torch.nn.functional.smooth_l1_loss(predicted / unit, wanted / unit)
    law, own = target.lm_head(wanted).softmax(-1), target.lm_head(predicted).log_softmax(-1)
    assert loss.item() == pytest.approx(float(regression + 0.1 * -(law * own).sum(-1).mean()), rel=1e-5)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_batch_without_assistant_tokens_gives_zero_and_no_nan(kind: str) -> None:
    _, head, objective, batch = parts(kind)
    empty = Batch(batch.tokens, torch.zeros_like(batch.mask), batch.features, batch.final, batch.best)
    loss, counts = objective(empty, STEPS)
    loss.backward()
    assert loss.item() == 0.0
    assert all(torch.isfinite(p.grad).all() for p in head.parameters() if p.grad is not None)
    assert acceptance(counts).chain_tau == 1.0


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_text_shorter_than_the_steps_is_no_trouble(kind: str) -> None:
    target, head, objective, _ = parts(kind)
    tokens = torch.tensor([[5, 6]])
    batch = run_target(target, tokens, torch.ones_like(tokens, dtype=torch.bool), head.spec.taps)
    loss, _ = objective(batch, STEPS)
    loss.backward()
    assert loss.item() == 0.0


def test_every_parameter_is_trained_and_the_target_is_not() -> None:
    target, head, objective, batch = parts("eagle3")
    target.model.requires_grad_(False)
    objective(batch, STEPS)[0].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
    assert all(p.grad is None for p in target.model.parameters())


@torch.no_grad()
def test_noise_depends_on_its_generator_alone() -> None:
    _, _, objective, batch = parts("eagle")
    losses = [objective(batch, 1, torch.Generator().manual_seed(seed))[0].item() for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    assert objective(batch, 1)[0].item() != losses[0]


def test_acceptance_from_counts() -> None:
    counts = torch.tensor([[10.0, 5, 10, 5], [9.0, 3, 5, 2]])
    figures = acceptance(counts)
    assert figures.by_step == (0.5, 3 / 9)
    assert figures.in_chain == (0.5, 0.4)
    assert figures.chain_tau == pytest.approx(1 + 0.5 + 0.5 * 0.4)


def test_a_smaller_vocabulary_of_an_eagle_heads_token_loss() -> None:
    target, head, whole, batch = parts("eagle")
    weights = Weights(regression=0.0, classification=1.0, noise=0.0)
    every = torch.arange(VOCAB)
    losses = {}
    for name, ids in (("whole", None), ("all", every), ("some", every[::2])):
        objective = Objective(head, Teacher(target, None), weights, None if ids is None else Teacher(target, ids))
        head.zero_grad()
        loss, _ = objective.train()(batch, 1)
        loss.backward()
        losses[name] = (loss.item(), head.fc.weight.grad.clone())
        assert torch.equal(objective.eval()(batch, 1)[1], whole.eval()(batch, 1)[1]), "judged over all tokens"
    assert losses["all"][0] == pytest.approx(losses["whole"][0], rel=1e-5)
    assert torch.allclose(losses["all"][1], losses["whole"][1], atol=1e-6)
    with torch.no_grad(), unrolled_attention(head):
        output = next(unroll(head, batch.tokens, batch.features, 1))
    logits = target.model(input_ids=batch.tokens).logits
    terms = []
    for row, at in batch.mask[:, 2:].nonzero().tolist():
        law = logits[row, at + 1]
        if int(law.argmax()) % 2 == 0:
            own = target.lm_head(output[row, at])[every[::2]].log_softmax(-1)
            terms.append(float(-(law[every[::2]].softmax(-1) * own).sum().detach()))
    assert terms
    assert losses["some"][0] == pytest.approx(sum(terms) / len(terms), rel=1e-4)
