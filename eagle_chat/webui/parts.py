"""Building blocks of the page: elements whose content this project's own program draws, theme, style and program.

Gradio's HTML templates evaluate what looks like code in them, so no text of a model or a person ever goes into one:
templates here are fixed, and the value is drawn by `assets/webui/chat/chat.js`.
"""

from __future__ import annotations

import html
from typing import Any, Literal

import gradio as gr

from eagle_chat.core.assets import asset_path
from eagle_chat.webui.explorer import explorer_assets

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "Liberation Sans", "sans-serif")
MONO = ("ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")
Part = Literal["html", "transcript", "explorer", "lanes", "save"]


def part(kind: Part, value: Any = None, inside: str = "", attributes: str = "", **options: Any) -> Any:
    """A component that `EagleChat.<kind>` draws. `inside`, `attributes`: fixed HTML of the element."""
    return gr.HTML(
        value,
        html_template=f"<div data-host {attributes}>{inside}</div>",
        js_on_load=f"EagleChat.{kind}(element, props, watch)",
        apply_default_css=False,
        **options,
    )


def fixed(markup: str) -> Any:
    """HTML of this program that never changes."""
    return gr.HTML(html_template=markup, js_on_load=None, apply_default_css=False)


def head() -> str:
    """Style and program, for the page's head. Nothing in it comes from another host."""
    folder = asset_path("webui", "chat")
    css, js = explorer_assets()
    own_css = (folder / "chat.css").read_text(encoding="utf-8")
    own_js = (folder / "chat.js").read_text(encoding="utf-8")
    return (
        '<meta name="referrer" content="no-referrer">'
        f"<style>{css}\n{own_css}</style><script>{js}</script><script>(function () {{\n{own_js}\n}})();</script>"
    )


def theme() -> Any:
    """Paper and ink, fonts of the system."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.stone,
        font=FONT,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_sm,
    ).set(
        body_background_fill="#fcfbf8",
        body_background_fill_dark="#17191d",
        body_text_color="#23262b",
        body_text_color_dark="#e7e5df",
        # Gradio's own greys are too faint beside ours to be read by everybody.
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_shadow="none",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_hover="#f3f1eb",
        button_secondary_background_fill_dark="#1f2227",
        button_secondary_background_fill_hover_dark="#24282e",
        button_primary_background_fill="#1f6091",
        button_primary_background_fill_hover="#174a70",
        button_primary_background_fill_dark="#2d76ad",
        button_primary_background_fill_hover_dark="#174a70",
        button_primary_text_color="#ffffff",
        input_background_fill="#ffffff",
        input_background_fill_dark="#1f2227",
        slider_color="#2d76ad",
    )


def status_html(phase: str, text: str) -> str:
    """The line about the engine; `text` is escaped here."""
    return f'<span class="ec-dot {phase}"></span>{html.escape(text)}'
