"""The card that goes with a head: what it was made for, from what, how, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle_chat.core.heads.spec import HeadSpec
from eagle_chat.training.timing import duration

NOT_SETTINGS = (
    "out", "data", "base", "features_folder", "device", "from_head", "start", "exclude", "taps", "norm_before_fc",
    "norm_output",
)  # fmt: skip
"""Fields of the config that are places, or are told elsewhere on the card."""


def card(
    spec: HeadSpec,
    told: Mapping[str, Any],
    saved: Mapping[str, Any],
    curve: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Any] | None,
) -> str:
    """A README.md. `told`: run.json; `saved`: the weights with their figures; `figures`: of `evaluate`."""
    kind = "EAGLE-3" if spec.architecture == "eagle3" else "EAGLE"
    target, config = told["target"], told["config"]
    took = duration(saved["seconds"])
    lines = [
        "---",
        f"tags: [{spec.architecture}, speculative-decoding, draft-head]",
        "---",
        f"# {kind} draft head for {target['name']}",
        "",
        "Made by `eagle-chat train`. It does not change what the target says: verification is lossless with any head.",
        "",
        "| | |",
        "|---|---|",
        f"| target | {target['name']} ({target['architecture']}, {target['layers']} layers), {target['dtype']} |",
        f"| revision of the target | {target['revision'] or 'not given'} |",
        f"| text | {told['samples']:,} samples, {told['answer_tokens']:,} answer tokens, sha256 {told['data'][:16]} |",
        f"| held out | {told['validation_samples']:,} samples, sha256 {told['validation_data'][:16]} |",
        f"| kept out | {_kept_out(config)} |",
        f"| begun with | {_begun_with(config)} |",
        f"| weights of | step {saved['step']:,}, {saved['answer_tokens']:,} answer tokens, {took} |",
        "| files | `config.json`, `model.safetensors` (bfloat16): the published layout |",
    ]
    if spec.architecture == "eagle3":
        lines.append(f"| taps | `hidden_states` {', '.join(map(str, spec.taps))} |")
        lines.append(f"| norms beyond the layer's own | {_norms(spec)} |")
        lines.append(f"| draft vocabulary | {spec.draft_vocab_size:,} of {target['vocab_size']:,} tokens |")
    lines += ["", "## Settings", "", *_settings(config), "", "## Curve on held-out text", "", *_curve(curve)]
    if figures:
        lines += ["", "## Figures", "", *(f"- {name}: {_value(value)}" for name, value in figures.items())]
    return "\n".join([*lines, ""])


def _kept_out(config: Mapping[str, Any]) -> str:
    names = [name.rsplit("/", 1)[-1] for name in config["exclude"]]
    return (
        f"questions sharing 8 words in a row with {', '.join(names)}" if names else "nothing was asked to be kept out"
    )


def _begun_with(config: Mapping[str, Any]) -> str:
    if config["from_head"] is not None:
        return f"another head, {Path(config['from_head']).name}, whose training this one continued"
    return "the target's own weights" if config["start"] == "target" else "weights at random"


def _norms(spec: HeadSpec) -> str:
    before = {0: "", 1: "over all taps"}.get(spec.num_fc_norms, "of each tap")
    on = [
        before,
        "of the output fed back" if spec.norm_output else "",
        *(["for the residual"] * spec.norm_before_residual),
    ]
    return ", ".join(filter(None, on)) or "none"


def _settings(config: Mapping[str, Any]) -> list[str]:
    return [
        f"    {name} = {_toml(value)}"
        for name, value in config.items()
        if name not in NOT_SETTINGS and value is not None
    ]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _curve(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    held_out = [row for row in rows if row["kind"] == "validation"]
    if not held_out:
        return ["Nothing was held out."]
    lines = ["| step | loss | acceptance by step | chain τ |", "|---|---|---|---|"]
    shown = [row for at, row in enumerate(held_out) if at % max(1, len(held_out) // 20) == 0 or row is held_out[-1]]
    for row in shown:
        by_step = " / ".join(f"{share:.3f}" for share in row["acceptance"])
        lines.append(f"| {row['step']:,} | {row['loss']:.3f} | {by_step} | {row['chain_tau']:.2f} |")
    return lines


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list | tuple):
        return " / ".join(_value(item) for item in value)
    return str(value)
