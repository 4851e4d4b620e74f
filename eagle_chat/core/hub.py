"""What comes from the hub: what of it is on this machine, and fetching it. No torch is needed here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from eagle_chat.core import registry
from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError, first_line

CONFIGS = ("*.json", "*.model", "*.jinja", "*.txt")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
HEAD_FILES = ("config.json", "*.safetensors", "pytorch_model*.bin", "*.index.json")
ASSET, EMBEDDED = "asset:", "embedded:"


def head_folder(name: str, revision: str | None = None) -> Path:
    """The folder of a head: an asset, a folder as it is, or a hub id, fetched. UserError where there is none."""
    if name.startswith(ASSET):
        return asset_path(*name.removeprefix(ASSET).split("/"))
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"a head's folder or hub id expected, found {name!r}: check --draft")
    known = registry.find_head(name)
    if known is not None and known.host == "modelscope":
        raise UserError(
            f"a head on the hub expected, found {name}, which is on modelscope.cn: fetch it by `modelscope download "
            f"--model {name} --local_dir FOLDER` (pip install modelscope), then give --draft FOLDER"
        )
    return _fetch("head", name, revision, list(HEAD_FILES))


def fetch_head(name: str, revision: str | None = None) -> None:
    """Have a head on this machine."""
    head_folder(name, revision)


def fetch_target(name: str, revision: str | None = None) -> None:
    """Have a target on this machine. Pickled weights are fetched only where there are no safetensors."""
    if name.startswith(EMBEDDED):
        from eagle_chat.core.embedded import ensure_embedded

        ensure_embedded()
        return
    folder = _fetch("target", name, revision, [*CONFIGS, WEIGHTS[0]])
    if not any(folder.glob(WEIGHTS[0])):
        _fetch("target", name, revision, [*CONFIGS, WEIGHTS[1]])


def _fetch(what: str, repo: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(f"the {what} {repo} could not be fetched ({first_line(error)}): {remedy(error)}") from error


def remedy(error: BaseException) -> str:
    """What to do about a hub's refusal, by its reason."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    found: BaseException | None = error
    while found is not None:  # transformers wraps the hub's errors in its own
        if isinstance(found, GatedRepoError):
            return "its authors ask you to accept their terms: do so on its page, then run `hf auth login`"
        if isinstance(found, RevisionNotFoundError):
            return "check --revision or --draft-revision"
        if isinstance(found, RepositoryNotFoundError):
            return "the hub has no such id, or it is private: check the name, or run `hf auth login`"
        found = found.__cause__ or found.__context__
    return "check the name and the network"


def cached(name: str) -> bool:
    """Whether all weights of a target or head are on this machine."""
    if name.startswith(ASSET):
        return True
    if name.startswith(EMBEDDED):
        from eagle_chat.core.embedded import embedded_cached

        return embedded_cached() is not None
    return any(_is_whole(snapshot) for snapshot in _snapshots(name))


def cached_gigabytes(name: str) -> float:
    """Size of what is on this machine of a hub id, 10^9 bytes; 0 for anything else."""
    sizes = [
        sum(file.stat().st_size for file in snapshot.rglob("*") if file.is_file()) for snapshot in _snapshots(name)
    ]
    return max(sizes, default=0) / 1e9


def _snapshots(repo: str) -> Iterator[Path]:
    if ":" in repo:
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    yield from (Path(HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots").glob("*")


def _is_whole(snapshot: Path) -> bool:
    """Whether the weights are there, with every part that their index names."""
    indices = [*snapshot.glob("*.safetensors.index.json"), *snapshot.glob("pytorch_model.bin.index.json")]
    try:
        parts = {part for index in indices[:1] for part in json.loads(index.read_text())["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    if parts:
        return all((snapshot / part).is_file() for part in parts)
    return any(any(snapshot.glob(pattern)) for pattern in WEIGHTS)
