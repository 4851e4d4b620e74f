"""A head to begin with: sizes from the target, and weights that already guess something.

The head's layer begins as the target's last decoder layer, its LM head as the target's rows of the draft vocabulary,
and `fc` as the identity on the highest tap: training starts near "what the target would say with one layer left".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagle_chat.core.errors import HeadMismatchError, UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import build_head, check_taps, read_checkpoint
from eagle_chat.core.heads.eagle import EagleHead
from eagle_chat.core.heads.eagle3 import Eagle3Head
from eagle_chat.core.heads.spec import HeadSpec, default_taps, rope_parameters
from eagle_chat.core.target import Target
from eagle_chat.training.config import TrainConfig

INITIAL_DEVIATION = 0.02
_SMALL_SCALE = 1e-3
_Shape = tuple[int, ...] | bool


def new_head(config: TrainConfig, target: Target, draft_ids: Tensor | None) -> tuple[DraftHead, list[str]]:
    """The head that training begins with, in float32 on the target's device, and notes for people.

    HeadMismatchError where `from_head` or the taps do not fit the target.
    """
    if config.from_head is not None:
        return _continued(config, target, draft_ids)
    head = empty_head(_spec(config, target, draft_ids), target, draft_ids)
    _randomise(head, config.seed)
    notes: list[str] = []
    if config.start == "target":
        notes = _from_target(head, target)
    return head, notes


def empty_head(spec: HeadSpec, target: Target, draft_ids: Tensor | None) -> DraftHead:
    """A head of this shape for training: float32, also where the target is kept in something smaller."""

    def embed(tokens: Tensor) -> Tensor:
        return target.embed(tokens).float()

    def lm_head(hidden: Tensor) -> Tensor:
        return target.lm_head(hidden.to(target.dtype)).float()

    kind = Eagle3Head if spec.architecture == "eagle3" else EagleHead
    head = kind(spec, embed, lm_head, draft_ids)
    return head.to(target.device).float()


def load_for_training(folder: Path, target: Target) -> DraftHead:
    """A head in the published layout as a trainable one. HeadMismatchError where it does not fit the target."""
    found, _ = build_head(read_checkpoint(folder), target)
    head = empty_head(found.spec, target, found.draft_ids)
    head.load_state_dict(found.state_dict())
    return head


def _continued(config: TrainConfig, target: Target, draft_ids: Tensor | None) -> tuple[DraftHead, list[str]]:
    """`from_head` as it is, its draft vocabulary moved to this run's where the two differ."""
    found = load_for_training(Path(str(config.from_head)).expanduser(), target)
    if found.spec.architecture != config.head:
        raise HeadMismatchError(
            f"a head of kind {config.head} expected in {config.from_head}, found {found.spec.architecture}: give --head"
        )
    _expect_as_asked(config, found.spec)
    if found.spec.architecture == "eagle" or _same(found.draft_ids, draft_ids):
        return found, []
    shape = replace(found.spec, draft_vocab_size=_size(draft_ids, target), shares_lm_head=False)
    head = empty_head(shape, target, draft_ids)
    state = found.state_dict()
    rows = _lm_rows(target, draft_ids)  # tokens that the old head did not know begin as the target has them
    known = torch.full((target.vocab_size,), -1, dtype=torch.long, device=rows.device)
    old_ids = found.draft_ids if found.draft_ids is not None else torch.arange(target.vocab_size, device=rows.device)
    known[old_ids] = torch.arange(old_ids.shape[0], device=rows.device)
    places = known if draft_ids is None else known[draft_ids.to(rows.device)]
    kept = places >= 0
    if not found.spec.shares_lm_head:  # else the target's rows are those that it had
        rows[kept] = state["lm_head.weight"][places[kept]]
    head.load_state_dict({**state, "lm_head.weight": rows})
    return head, [f"{int(kept.sum())} of {kept.shape[0]} draft tokens taken over from {config.from_head}"]


def _expect_as_asked(config: TrainConfig, spec: HeadSpec) -> None:
    """UserError where an option asks for another shape than the head in `from_head` has."""
    asked_and_found: dict[str, tuple[_Shape | None, _Shape]] = {
        "taps": (tuple(sorted(config.taps)) or None, spec.taps),
        "norm_before_fc": (config.norm_before_fc, spec.num_fc_norms > 0),
        "norm_output": (config.norm_output, spec.norm_output),
    }
    for name, (asked, found) in asked_and_found.items():
        if asked is not None and asked != found:
            raise UserError(
                f"a head with {name} {_words(asked)} expected in {config.from_head}, found {_words(found)}: leave "
                f"--{name.replace('_', '-')} out"
            )


def _words(value: _Shape) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else ",".join(map(str, value))


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.shape == right.shape and bool((left.cpu() == right.cpu()).all())


def _size(draft_ids: Tensor | None, target: Target) -> int:
    return target.vocab_size if draft_ids is None else draft_ids.shape[0]


def _spec(config: TrainConfig, target: Target, draft_ids: Tensor | None) -> HeadSpec:
    """A one-layer head with the target's sizes."""
    own: Any = target.config
    heads: int = own.num_attention_heads
    spec = HeadSpec(
        architecture="eagle",
        hidden_size=target.hidden_size,
        embedding_size=target.embed(torch.zeros(1, dtype=torch.long)).shape[-1],
        feature_size=target.hidden_size,
        intermediate_size=own.intermediate_size,
        num_heads=heads,
        num_kv_heads=getattr(own, "num_key_value_heads", None) or heads,
        head_dim=getattr(own, "head_dim", None) or target.hidden_size // heads,
        num_layers=1,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size,
        rms_norm_eps=float(getattr(own, "rms_norm_eps", 1e-6)),
        rope=_rope(own),
        max_positions=target.context_limit,
    )
    if config.head == "eagle":
        return spec
    taps = check_taps(config.taps or default_taps(target.num_layers), target.num_layers)
    return replace(
        spec,
        architecture="eagle3",
        taps=taps,
        feature_size=len(taps) * target.hidden_size,
        draft_vocab_size=_size(draft_ids, target),
        num_fc_norms=len(taps) if config.norm_before_fc else 0,
        norm_output=bool(config.norm_output),
    )


def _rope(config: Any) -> dict[str, Any]:
    """The target's rope parameters; those of its full attention where it keeps one set for each kind of layer."""
    given = dict(getattr(config, "rope_parameters", None) or {})
    nested = given.get("full_attention")
    return rope_parameters({"rope_parameters": nested if isinstance(nested, dict) else given})


def _randomise(head: DraftHead, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                values = torch.randn(parameter.shape, generator=generator) * INITIAL_DEVIATION
                parameter.copy_(values)


@torch.no_grad()
def _from_target(head: DraftHead, target: Target) -> list[str]:
    """Begin with the target's weights; what of its last layer has another shape or name is left random, with a note."""
    layer = _layers(target)[-1]
    parts = dict(layer.named_parameters())
    mine: Any = head.midlayer if isinstance(head, Eagle3Head) else head.layers[0]  # type: ignore[index]
    missing = [name for name, own in mine.named_parameters() if not _copy(name, own, parts, head, target)]
    if isinstance(head, Eagle3Head):
        _start_eagle3(head, target)
    elif isinstance(head, EagleHead):
        _start_eagle(head)
    if missing:
        return [f"the target's last layer has no {', '.join(missing)} of the head's shape: these begin at random"]
    return []


def _copy(name: str, own: Tensor, parts: Mapping[str, Tensor], head: DraftHead, target: Target) -> bool:
    """One parameter of the head's layer from the target's layer; whether there was one to take."""
    if name in ("input_layernorm.weight", "hidden_norm.weight"):
        return True  # set with the rest of the head's own parts
    value = parts.get(name)
    if value is None or not value.is_floating_point():
        return False
    value = value.float().to(own.device)
    if name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"):
        if isinstance(head, EagleHead):
            value = value * _norm_ratio(target).to(own.device)
        if own.shape[1] == 2 * value.shape[1] and own.shape[0] == value.shape[0]:
            own[:, value.shape[1] :] = value  # the half that reads the hidden; the embedding's half stays random
            return True
    if own.shape != value.shape:
        return False
    own.copy_(value)
    return True


def _start_eagle3(head: Eagle3Head, target: Target) -> None:
    size = head.spec.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, -size:] = torch.eye(size, device=head.device)
    before, final = _norms(target)
    if before is not None:
        head.midlayer.hidden_norm.weight.copy_(before)
    if final is not None:
        head.norm.weight.copy_(final)
    if head.lm_head is not None:
        head.lm_head.weight.copy_(_lm_rows(target, head.draft_ids))


def _start_eagle(head: EagleHead) -> None:
    """Output = input feature: `fc` passes the feature on, and both branches of the layer add nothing yet."""
    size = head.spec.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, -size:] = torch.eye(size, device=head.device)
    for name, parameter in head.layers[0].named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.zero_()


def _norm_ratio(target: Target) -> Tensor:
    """Factors [H] from a finally normed state to what the last layer's input norm would have made of it.

    An eagle head reads final features, and its first layer has no norm of its own.
    """
    before, final = _norms(target)
    if before is None or final is None:
        return torch.ones(target.hidden_size)
    small = final.abs() < _SMALL_SCALE * final.abs().max()
    return torch.where(small, 0.0, before / torch.where(small, 1.0, final))


def _norms(target: Target) -> tuple[Tensor | None, Tensor | None]:
    """Scales [H] of the last layer's input norm and of the norm before the LM head; None where there is none."""
    layers = _layers(target)
    beside = [module for module in target.model.modules() if any(child is layers for child in module.children())]
    final = getattr(beside[0], "norm", None) if beside else None
    return _scale(getattr(layers[-1], "input_layernorm", None), target), _scale(final, target)


def _scale(norm: Any, target: Target) -> Tensor | None:
    """What a norm multiplies a state of unit size with. It is asked, because some keep it as an offset from one."""
    if not isinstance(norm, nn.Module):
        return None
    weight = next(norm.parameters(), None)
    if weight is None or weight.shape != (target.hidden_size,):
        return None
    signs = torch.ones(target.hidden_size, dtype=weight.dtype, device=weight.device)
    signs[::2] = -1.0
    scale: Tensor = norm(signs[None])[0] * signs
    return scale.float().to(target.device)


def _layers(target: Target) -> nn.ModuleList:
    """The target's decoder layers: the one list of as many modules as it has layers."""
    found = [module for module in _lists(target.model) if len(module) == target.num_layers]
    if not found:
        raise UserError(
            f"a target with a list of {target.num_layers} decoder layers expected, found none in {target.name}: "
            "use --start random"
        )
    return found[0]


def _lists(model: nn.Module) -> Iterator[nn.ModuleList]:
    return (module for module in model.modules() if isinstance(module, nn.ModuleList))


def _lm_rows(target: Target, draft_ids: Tensor | None) -> Tensor:
    """The target's LM head at the draft vocabulary, float32 [Vd, H], by its products with unit vectors: that also
    reads a quantised one."""
    unit = torch.eye(target.hidden_size, dtype=target.dtype, device=target.device)
    rows = target.model.get_output_embeddings()(unit).float()  # [H, V]
    zero = target.model.get_output_embeddings()(torch.zeros_like(unit[:1])).float()
    matrix: Tensor = (rows - zero).T
    return matrix.contiguous() if draft_ids is None else matrix[draft_ids.to(matrix.device)].contiguous()
