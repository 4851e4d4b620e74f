"""What keeps the package readable: who may import whom, how long a file may be, what may happen at import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1] / "eagle_chat"
MODULES = sorted(ROOT.rglob("*.py"))
LONGEST = 320
TOP = ("cli", "webui")


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every module that is imported anywhere in the file, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            yield base, node
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def part_of(name: str) -> str:
    """core, training, bench, cli, webui, or "" for what stands above them."""
    parts = name.split(".")
    is_part = len(parts) > 1 and parts[0] == "eagle_chat" and (ROOT / parts[1]).is_dir()
    return parts[1] if is_part else ""


def offences(source: str, module: str) -> list[str]:
    """Imports that go against the one-way flow."""
    own, found = part_of(module), set()
    tree = ast.parse(source)
    lazy = {id(node) for body in ast.walk(tree) if isinstance(body, ast.FunctionDef) for node in ast.walk(body)}
    for name, node in imports(tree, module):
        if not inside(name, "eagle_chat"):
            continue
        other = part_of(name)
        asks_version = name == "eagle_chat" and id(node) in lazy
        if own == "core" and other != "core" and not asks_version:
            found.add(f"{module} imports {name}: core knows nothing of ours outside core")
        starts_program = module == "eagle_chat.__main__" and other == "cli"
        # The command that opens the page has to reach it, when it is run and not before.
        opens_page = own == "cli" and other == "webui" and id(node) in lazy
        if other in TOP and own != other and not starts_program and not opens_page:
            found.add(f"{module} imports {name}: nobody imports {other}")
        if own == "" and other and not starts_program and other != "core":
            found.add(f"{module} imports {name}: the package's face shows core only")
    return sorted(found)


def test_there_are_modules_to_look_at() -> None:
    names = {name_of(path) for path in MODULES}
    assert {"eagle_chat", "eagle_chat.core.engine", "eagle_chat.core.heads.eagle3", "eagle_chat.cli.app"} <= names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_flow_one_way(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), name_of(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eagle_chat.core.engine", "from eagle_chat.cli import app"),
        ("eagle_chat.core.engine", "def late():\n    from eagle_chat import load_engine"),
        ("eagle_chat.core.engine", "import eagle_chat.cli.app"),
        ("eagle_chat.core.engine", "from ..cli.app import main"),
        ("eagle_chat.core.engine", "def late():\n    from eagle_chat.cli import app"),
        ("eagle_chat.core.heads.eagle", "if TYPE_CHECKING:\n    import eagle_chat.cli"),
        ("eagle_chat", "from eagle_chat.cli.app import main"),
    ],
)
def test_imports_against_the_flow_are_noticed(module: str, source: str) -> None:
    assert offences(source, module)
    assert not offences("from eagle_chat.core import cache\nimport torch", module)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_is_long(path: Path) -> None:
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= LONGEST, f"{name_of(path)} has {length} lines: two things in one file"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_weights_are_loaded_with_gaps(path: Path) -> None:
    """`strict=False` drops what does not fit without a word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("load"):
            loose = [key for key in node.keywords if key.arg == "strict" and getattr(key.value, "value", None) is False]
            assert not loose, f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_pickles_are_never_run(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "pickle.load", "pickle.loads"):
            safe = [
                key for key in node.keywords if key.arg == "weights_only" and getattr(key.value, "value", 0) is True
            ]
            assert safe, f"{name_of(path)}:{node.lineno}"


HEAVY = ("torch", "transformers", "numpy", "gradio", "fastchat", "pydantic", "rich", "typer", "huggingface_hub")


def loaded_by(statement: str) -> set[str]:
    """Heavy libraries that a fresh interpreter holds after the statement."""
    program = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE, cwd=ROOT.parent
    )
    return set(result.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import eagle_chat") == set()
    assert loaded_by("import eagle_chat; eagle_chat.LoadConfig(); eagle_chat.SamplingConfig()") == set()


def test_views_can_read_events_without_torch() -> None:
    """Replaying a recording, or drawing one, must not wait for a model's libraries."""
    modules = ", ".join(f"eagle_chat.core.{name}" for name in ("events", "config", "errors", "metrics", "registry"))
    assert not loaded_by(f"import {modules}") & {"torch", "transformers"}
    assert "torch" in loaded_by("import eagle_chat.core.engine")
