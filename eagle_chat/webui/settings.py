"""The controls of decoding on the page, one for each field of `Controls`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import gradio as gr

from eagle_chat.webui import limits
from eagle_chat.webui.controls import Controls


@dataclass(frozen=True)
class Settings:
    """The components by field name."""

    by_name: dict[str, Any]

    @property
    def all(self) -> list[Any]:
        """In the order of the fields of `Controls`."""
        return [self.by_name[field.name] for field in fields(Controls)]

    @property
    def tree(self) -> list[Any]:
        """Depth, top_k, nodes."""
        return [self.by_name[name] for name in ("depth", "top_k", "total_tokens")]

    @property
    def seed(self) -> Any:
        """The seed's field."""
        return self.by_name["seed"]

    @property
    def temperature(self) -> Any:
        """The temperature's slider."""
        return self.by_name["temperature"]


def settings(defaults: Controls, heads: list[tuple[str, str]], is_server: bool = False) -> Settings:
    """Lay the controls out; a server leaves no choice of drafts."""
    made: dict[str, Any] = {}
    made["mode"] = gr.Radio(
        [("with a draft (speculative)", "speculative"), ("plain, one token a pass", "plain")],
        value=defaults.mode,
        label="How the next answer is made",
        visible=not is_server,
        elem_id="ec-mode",
    )
    with gr.Accordion("Settings", open=False, elem_id="ec-settings"):
        with gr.Row():
            with gr.Column(min_width=220, visible=not is_server):
                _tree(made, defaults, heads)
            with gr.Column(min_width=220):
                _sampling(made, defaults, is_server)
        made["system"] = gr.Textbox(
            defaults.system,
            label="System prompt",
            info="Empty: the model's own, if it has one.",
            lines=2,
            max_lines=6,
            elem_id="ec-system",
        )
    return Settings(made)


_ONLY_DYNAMIC = """policy => { const interactive = policy === "dynamic";
  return Array(2).fill({__type__: "update", interactive}); }"""


def _tree(made: dict[str, Any], defaults: Controls, heads: list[tuple[str, str]]) -> None:
    made["policy"] = gr.Radio(
        [("dynamic tree", "dynamic"), ("static tree", "static"), ("chain", "chain")],
        value=defaults.policy,
        label="Draft",
        info="dynamic: grows where the head is sure",
        elem_id="ec-policy",
    )
    made["depth"] = gr.Slider(
        1, limits.DEPTH, value=defaults.depth, step=1, label="Depth", info="most drafted tokens on a path"
    )
    made["top_k"] = gr.Slider(
        1,
        limits.TOP_K,
        value=defaults.top_k,
        interactive=defaults.policy == "dynamic",
        step=1,
        label="Children (top_k)",
        info="guesses after each node of a dynamic tree",
    )
    made["total_tokens"] = gr.Slider(
        0,
        limits.NODES,
        value=defaults.total_tokens,
        interactive=defaults.policy == "dynamic",
        step=1,
        label="Nodes",
        info="sent to the model in one pass; 0: chosen for every cycle by what it costs here",
    )
    made["head"] = gr.Dropdown(heads, value=defaults.head, label="Draft head", elem_id="ec-head")
    shape = [made["top_k"], made["total_tokens"]]
    # Chains and static trees have shapes of their own.
    made["policy"].change(
        None, made["policy"], shape, js=_ONLY_DYNAMIC, queue=False, show_progress="hidden", api_visibility="private"
    )


def _sampling(made: dict[str, Any], defaults: Controls, is_server: bool) -> None:
    made["temperature"] = gr.Slider(
        0.0, 2.0, value=defaults.temperature, step=0.05, label="Temperature", info="0: always the most likely token"
    )
    made["seed"] = gr.Number(defaults.seed, precision=0, label="Seed", info="the same seed gives the same text")
    made["max_new_tokens"] = gr.Slider(
        1, limits.NEW_TOKENS, value=defaults.max_new_tokens, step=1, label="Longest answer, in tokens"
    )
    with gr.Accordion("More about sampling", open=False):
        made["verify"] = gr.Radio(
            ["coupled", "rejection"],
            value=defaults.verify,
            label="Rule above temperature 0",
            info="both keep the model's law; coupled keeps the text too",
            visible=not is_server,
        )
        made["top_p"] = gr.Slider(0.01, 1.0, value=defaults.top_p, step=0.01, label="Top-p", info="1: off")
        made["sample_top_k"] = gr.Slider(0, 200, value=defaults.sample_top_k, step=1, label="Top-k", info="0: off")
        made["min_p"] = gr.Slider(0.0, 1.0, value=defaults.min_p, step=0.01, label="Min-p", info="0: off")
