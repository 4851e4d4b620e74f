from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from eagle_chat.cli.web import parse_auth
from eagle_chat.core.errors import UserError
from tests.cli.conftest import Program


def test_a_login_has_a_user_and_a_password() -> None:
    assert parse_auth(None) is None
    assert parse_auth("anna:se:cret") == ("anna", "se:cret")
    for wrong in ("anna", "anna:", ":secret", ""):
        with pytest.raises(UserError, match="a login such as"):
            parse_auth(wrong)


def test_a_public_page_needs_a_login(program: Program) -> None:
    ran = program("web", "--share")
    assert ran.code == 2
    assert "give --auth USER:PASSWORD with --share" in ran.err


def test_without_gradio_one_line_says_how_to_get_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gradio" else find(name))
    ran = program("web")
    assert ran.code == 1
    assert ran.err == "error: the browser chat needs gradio, found none: pip install 'eagle-chat[web]'\n"
