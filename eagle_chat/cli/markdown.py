"""A finished answer for the terminal: Markdown where there is any, otherwise exactly the text."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from eagle_chat.cli.text import clean
from eagle_chat.cli.theme import Theme

WIDEST = 100
"""Cells of a comfortable line."""
CODE_THEME = "ansi_dark"
"""The terminal's own colours, so that code can be read on light and dark."""
_PLAIN = {"paragraph_open", "paragraph_close", "inline", "text", "softbreak", "hardbreak"}


def renderable(text: str, theme: Theme) -> RenderableType:
    """`text` as something rich can print. It stays data: HTML, entities and rich's own markup are shown as written."""
    text = clean(text)
    tokens = _parsed(text)
    if theme.ascii or all(token.type in _PLAIN for token in _flat(tokens)):
        return Text(theme.shown(text))
    rendered = Markdown("", code_theme=CODE_THEME, inline_code_theme=CODE_THEME, hyperlinks=False)
    rendered.parsed = tokens
    return rendered


def print_answer(console: Console, text: str, theme: Theme) -> None:
    """Print a finished answer to the terminal, once."""
    if text.strip():
        console.print(renderable(text, theme), width=min(console.width, WIDEST), overflow="fold")


def _parsed(text: str) -> list[Token]:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    # An answer is not a document: nothing of it may disappear (references) or turn into something else.
    parser.disable(["reference", "entity", "image", "autolink"])
    tokens = parser.parse(text)
    for token in tokens:
        for child in token.children or []:
            if child.type == "softbreak":  # models end lines where they mean it
                child.type = "hardbreak"
    return tokens


def _flat(tokens: list[Token]) -> list[Token]:
    return [inner for token in tokens for inner in (token, *_flat(token.children or []))]
