"""What is on this machine, and what is said where the hub refuses; no network is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from eagle_chat.core import hub
from eagle_chat.core.errors import UserError


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of a/b in an empty hub cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    return folder


def test_weights_make_a_model_present(snapshot: Path) -> None:
    assert not hub.cached("a/b")
    (snapshot / "config.json").write_text("{}")
    assert not hub.cached("a/b")
    (snapshot / "model.safetensors").write_bytes(b"x" * 5_000_000)
    assert hub.cached("a/b")
    assert hub.cached_gigabytes("a/b") == pytest.approx(0.005, abs=1e-5)
    assert not hub.cached("a/c")


def test_a_part_that_is_missing_makes_it_absent(snapshot: Path) -> None:
    parts = {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    (snapshot / parts["x"]).write_bytes(b"x")
    assert not hub.cached("a/b")
    (snapshot / parts["y"]).write_bytes(b"x")
    assert hub.cached("a/b")
    (snapshot / "model.safetensors.index.json").write_text("[")
    assert not hub.cached("a/b")


def test_assets_are_always_there() -> None:
    assert hub.cached("asset:heads/smollm2-135m-instruct/eagle3")
    assert (hub.head_folder("asset:heads/smollm2-135m-instruct/eagle3") / "config.json").is_file()
    assert hub.cached_gigabytes("asset:heads/smollm2-135m-instruct/eagle3") == 0


def fetching(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> list[dict[str, Any]]:
    """Stand in for the hub; the calls made to it."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(repo: str, **options: Any) -> str:
        calls.append({"repo": repo, **options})
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_head_is_fetched_at_its_revision_and_nothing_but_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fetching(monkeypatch, tmp_path)
    assert hub.head_folder("a/b", "0123abc") == tmp_path
    assert calls == [{"repo": "a/b", "revision": "0123abc", "allow_patterns": list(hub.HEAD_FILES)}]
    assert not any(pattern.endswith((".py", ".pkl", "*")) for pattern in hub.HEAD_FILES)


def test_pickles_of_a_target_are_fetched_only_where_there_is_nothing_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fetching(monkeypatch, tmp_path)
    hub.fetch_target("a/b", "main")
    assert [any(".bin" in pattern for pattern in call["allow_patterns"]) for call in calls] == [False, True]
    calls.clear()
    (tmp_path / "model.safetensors").touch()
    hub.fetch_target("a/b", "main")
    assert len(calls) == 1


def refusal(kind: type[Exception], message: str) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    return error


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (refusal(errors.GatedRepoError, "403 Client Error.\nAccess is restricted"), "hf auth login"),
        (refusal(errors.RepositoryNotFoundError, "404 Client Error."), "no such id"),
        (refusal(errors.RevisionNotFoundError, "404 Client Error."), "--draft-revision"),
        (refusal(errors.LocalEntryNotFoundError, "cannot reach"), "network"),
        (OSError("\n\nno route\nmore"), "network"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(error: Exception, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetching(monkeypatch, error)
    with pytest.raises(UserError, match=rf"the head a/b could not be fetched \(.{{5,}}\): .*{word}") as caught:
        hub.head_folder("a/b")
    assert "\n" not in str(caught.value)


def test_a_hub_error_inside_another_is_found() -> None:
    outer = OSError("You are trying to access a gated repo.")
    outer.__cause__ = refusal(errors.GatedRepoError, "403")
    assert "hf auth login" in hub.remedy(outer)


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "a/b/c", "/nowhere"])
def test_a_head_that_is_no_id_is_not_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fetching(monkeypatch, OSError())
    with pytest.raises(UserError, match="a head's folder or hub id expected"):
        hub.head_folder(name)
    assert calls == []


def test_a_head_that_is_not_on_the_hub_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fetching(monkeypatch, AssertionError("nothing is to be fetched"))
    with pytest.raises(
        UserError, match=r"modelscope\.cn: fetch it by `modelscope download --model linglingdan/.*--draft"
    ):
        hub.head_folder("linglingdan/Eagle3_for_MiniCPM4")
    assert calls == []
