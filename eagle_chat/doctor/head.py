"""The head: its files, its generation, and whether it was made for this target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle_chat.core.errors import EagleChatError, HeadMismatchError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import Checkpoint, architecture_of, build_head, check_taps, read_checkpoint
from eagle_chat.core.target import Target
from eagle_chat.doctor.findings import MISFIT, Finding, from_error, ok
from eagle_chat.doctor.pair import Names
from eagle_chat.doctor.weights import defect, weight_files

GROUP = "head"
OTHER_KINDS = {
    "medusa_head": "Medusa",
    "hydra": "Hydra",
    "ngram": "an n-gram table",
    "mtp": "multi-token prediction",
    "lookahead": "lookahead",
}
"""Words in the tensor names of draft heads of other methods."""


def read_head(folder: Path) -> tuple[Checkpoint | None, list[Finding]]:
    """The head's files, and what is wrong with them."""
    files = weight_files(folder)
    reasons = [reason for reason in map(defect, files[:1]) if reason is not None]
    try:
        checkpoint = read_checkpoint(folder)
    except EagleChatError as error:
        cause = reasons[0] if reasons else "a file is missing or damaged"
        return None, [from_error(GROUP, "files", error, cause)]
    size = sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.tensors.values())
    count = len(checkpoint.tensors)
    return checkpoint, [ok(GROUP, "files", f"{count} tensors, {size / 2**20:,.0f} MiB", bytes=size)]


def check_head(
    checkpoint: Checkpoint, target: Target, names: Names, folder: Path
) -> tuple[DraftHead | None, list[Finding]]:
    """The head built without weights of the target, or None; and the findings on the way."""
    findings = [*_check_generation(checkpoint, names), *_check_config_vocabulary(checkpoint, target)]
    findings += _check_tokenizers(folder, names)
    try:
        taps = check_taps(names.config.taps, target.num_layers) if names.config.taps else None
        head, notes = build_head(checkpoint, target, taps)
    except EagleChatError as error:
        check, cause = explain(error, checkpoint, target)
        return None, [*findings, from_error(GROUP, check, error, cause, _remedy(names))]
    findings += [Finding(GROUP, "tensors", "note", note, "a newer or richer layout", "nothing") for note in notes]
    findings += [*_check_window(checkpoint, target), *_check_draft_vocabulary(checkpoint, head, target)]
    return head, findings


def _check_generation(checkpoint: Checkpoint, names: Names) -> Iterator[Finding]:
    """What the weights are, and whether name and config say the same."""
    try:
        found = architecture_of(checkpoint.tensors)
    except HeadMismatchError:
        return  # building the head fails at the same place, and is explained there
    label = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}[found]
    name = names.config.draft or (names.entry.head if names.entry is not None else None) or ""
    said = " ".join(map(str, [Path(name).name, *(checkpoint.config.get("architectures") or [])])).lower()
    if ("eagle3" in said.replace("-", "")) != (found == "eagle3") and "eagle" in said:
        cause = "name or config say otherwise; the weights decide"
        yield Finding(
            GROUP, "generation", "note", f"an {label} head by its weights", cause, "nothing, if it accepts well"
        )
    else:
        yield ok(GROUP, "generation", f"{label}, read from the weights", architecture=found)


def _check_config_vocabulary(checkpoint: Checkpoint, target: Target) -> Iterator[Finding]:
    said = checkpoint.config.get("vocab_size")
    if isinstance(said, int) and said != target.vocab_size and "embed_tokens.weight" not in checkpoint.tensors:
        yield Finding(
            GROUP,
            "vocabulary",
            "warning",
            f"its config says {said:,} tokens, the target has {target.vocab_size:,}",
            "it was made for a target with another vocabulary",
            "give the head of this target (--draft)",
            {"head": said, "target": target.vocab_size},
        )


def _check_tokenizers(folder: Path, names: Names) -> Iterator[Finding]:
    """Some heads come with the tokenizer they were trained with."""
    if names.folder is None or not (folder / "tokenizer.json").is_file():
        return
    from tokenizers import Tokenizer

    other = names.folder / "tokenizer.json"
    if not other.is_file():
        return
    try:
        mine, theirs = (Tokenizer.from_file(str(path)).get_vocab() for path in (folder / "tokenizer.json", other))
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        reason = f"one of the two tokenizers cannot be read ({error})"
        yield Finding(GROUP, "tokenizer", "warning", reason, "a damaged file", "get it again")
        return
    differing = sum(theirs.get(token) != number for token, number in mine.items())
    if differing:
        yield Finding(
            GROUP,
            "tokenizer",
            "error",
            f"{differing:,} of its {len(mine):,} tokens have another number in the target's tokenizer",
            "it was trained with the tokenizer of another target",
            _remedy(names) or "give the head made for this target (--draft), or --draft none",
            {"differing": differing},
            MISFIT,
        )


def explain(error: EagleChatError, checkpoint: Checkpoint, target: Target) -> tuple[str, str]:
    """The check that a refused head failed, and the cause."""
    tensors, message = checkpoint.tensors, str(error)
    other = next((kind for word, kind in OTHER_KINDS.items() if any(word in name.lower() for name in tensors)), None)
    if "fc.weight" not in tensors:
        if other is not None:
            return "generation", f"its tensors are those of {other}: another method than EAGLE"
        whole = any(name.startswith("layers.1.") for name in tensors)
        return "generation", "this is a target, not a head" if whole else "the download or the export is incomplete"
    if "lacks" in message:
        return "tensors", "the download or the export is incomplete, or its layout is one that is not known here"
    if "vocabulary" in message or "d2t" in message or "t2d" in message:
        return "draft vocabulary", _vocabulary_cause(tensors, target)
    if "taps" in message:
        return "taps", "the layers it reads are not in this target, which has fewer"
    if "a matrix expected" in message:
        return "tensors", "the file is damaged, or was exported wrongly"
    hidden, inputs = tensors["fc.weight"].shape
    if "another target" in message or "inputs" in message:
        per_feature = _feature_size(tensors)
        if per_feature != target.hidden_size:
            made_for = f"it was made for a target of hidden size {per_feature:,}, this one has {target.hidden_size:,}"
            return "sizes", made_for
        return "sizes", f"fc maps {inputs:,} to {hidden:,}, which does not go with the rest of this pair"
    return "config", "its config.json does not describe these weights"


def _feature_size(tensors: dict[str, Tensor]) -> int:
    """Hidden size of the target that a head was made for."""
    hidden, inputs = tensors["fc.weight"].shape
    return inputs // 3 if architecture_of(tensors) == "eagle3" else inputs - hidden


def _vocabulary_cause(tensors: dict[str, Any], target: Target) -> str:
    t2d = tensors.get("t2d")
    if t2d is not None and t2d.shape[0] != target.vocab_size:
        return f"it was made for a target of {t2d.shape[0]:,} tokens, this one has {target.vocab_size:,}"
    if "d2t" not in tensors:
        return "the map from its draft ids to the target's was not exported"
    return "the map was exported wrongly, or belongs to another head"


def _check_window(checkpoint: Checkpoint, target: Target) -> Iterator[Finding]:
    """Up to which position the head was made, against the target's context."""
    limit = checkpoint.config.get("max_position_embeddings")
    sliding = checkpoint.config.get("sliding_window")
    if isinstance(sliding, int) and sliding > 0 and checkpoint.config.get("use_sliding_window", True):
        yield Finding(
            GROUP,
            "window",
            "warning",
            f"its config asks for a sliding window of {sliding:,} tokens",
            "heads are run with full attention here",
            f"expect less acceptance beyond {sliding:,} tokens",
            {"sliding_window": sliding},
        )
    if isinstance(limit, int) and limit < target.context_limit:
        yield Finding(
            GROUP,
            "window",
            "note",
            f"made for {limit:,} positions, the target goes to {target.context_limit:,}",
            "it has seen no longer texts in training",
            f"expect less acceptance beyond {limit:,} tokens; the text stays right",
            {"head": limit, "target": target.context_limit},
        )
    elif isinstance(limit, int):
        yield ok(GROUP, "window", f"{limit:,} positions, all of the target's context", head=limit)


def _check_draft_vocabulary(checkpoint: Checkpoint, head: DraftHead, target: Target) -> Iterator[Finding]:
    size = head.spec.draft_vocab_size
    if head.draft_ids is None:
        offsets = checkpoint.tensors.get("d2t")
        if offsets is not None and bool(offsets.any()):
            cause = "the head drafts the whole vocabulary, so the map was not needed"
            yield Finding(
                GROUP, "draft vocabulary", "warning", "its map d2t is not used", cause, "export the head again"
            )
        else:
            yield ok(GROUP, "draft vocabulary", f"all {size:,} tokens", size=size)
        return
    share = size / target.vocab_size
    yield ok(GROUP, "draft vocabulary", f"{size:,} of {target.vocab_size:,} tokens ({share:.0%})", size=size)


def _remedy(names: Names) -> str:
    entry = names.entry
    if entry is not None and entry.head is not None and names.config.draft not in (None, entry.head):
        return f"--draft {entry.head} is the head known for {names.config.base}"
    return ""
