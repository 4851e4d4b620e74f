"""What is shipped, what importing costs, and that the tested versions lie in the ranges promised."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from eagle_chat.core import assets
from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import EagleChatError

REPOSITORY = Path(__file__).resolve().parent.parent
HEAD = ("heads", "smollm2-135m-instruct", "eagle3")


def test_assets_are_found_in_the_checkout() -> None:
    assert asset_path(*HEAD) == REPOSITORY.joinpath("assets", *HEAD)
    for name in ("config.json", "model.safetensors", "figures.json", "README.md"):
        assert asset_path(*HEAD, name).is_file()


def test_assets_are_found_when_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "eagle_chat"
    (package / "assets" / "trees").mkdir(parents=True)
    monkeypatch.setattr(assets, "_PACKAGE", package)
    assert asset_path("trees") == package / "assets" / "trees"


def test_missing_asset_is_named() -> None:
    with pytest.raises(EagleChatError, match=r"heads/nobody/eagle3.*missing"):
        asset_path("heads", "nobody", "eagle3")


def test_import_loads_no_torch() -> None:
    modules = "eagle_chat, eagle_chat.core.embedded, eagle_chat.core.assets, eagle_chat.core.errors"
    heavy = "{'torch', 'transformers', 'huggingface_hub', 'numpy', 'rich'}"
    done = subprocess.run(
        [sys.executable, "-c", f"import {modules}, sys; print({heavy} & set(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_tested_versions_lie_in_the_ranges() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    requirements = [Requirement(line) for group in (project["dependencies"], *extras) for line in group]
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))
    }
    for requirement in requirements:
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} does not admit the tested {version}"


@pytest.mark.slow  # builds and installs a wheel
def test_wheel_holds_assets_and_works_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(REPOSITORY)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    head = "eagle_chat/assets/" + "/".join(HEAD)
    assert {"eagle_chat/py.typed", f"{head}/config.json", f"{head}/model.safetensors"} <= names
    assert not [name for name in names if name.startswith(("tests/", "assets/"))]

    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from eagle_chat.core.assets import asset_path; print(asset_path(*{HEAD!r}))",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == target.joinpath(*head.split("/"))
