"""The page: what stands where, and what each control does."""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle_chat.webui import limits, lossless, recordings
from eagle_chat.webui.api import Endpoints
from eagle_chat.webui.comparing import WAYS
from eagle_chat.webui.controls import OWN_HEAD, Controls
from eagle_chat.webui.handlers import Handlers
from eagle_chat.webui.live import shown
from eagle_chat.webui.parts import fixed, part
from eagle_chat.webui.server_html import INTRODUCTION
from eagle_chat.webui.service import EngineService
from eagle_chat.webui.settings import settings

TITLE = "EAGLE Chat"
EXAMPLES = (
    "Why is the sky blue? Answer in two sentences.",
    "Write a Python function that reverses a string.",
    "Name three rivers in Europe.",
)
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
STREAM: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_limit": None,  # the queue is the service's own: it knows whose turn it is, and tells
    "trigger_mode": "multiple",  # else Gradio drops an event while the last one has not quite ended: a lost question
}
WELCOME = """<div class="ec-welcome"><h2>Ask something, and watch how the answer is drafted.</h2>
<p>A small <b>draft head</b> guesses several next tokens as a tree. The model checks the whole tree in one pass and
keeps what it would have said itself. So the text is the model's own, in fewer passes.</p>
<p>The picture beside this shows it cycle by cycle. It holds a recorded answer until you ask.</p></div>"""
SERVER_WELCOME = """<div class="ec-welcome"><h2>Ask something; a server answers.</h2>
<p>Where it counts its drafts, you see beside this how many of them were accepted. Its draft trees, if it has any, stay
with it.</p></div>"""
HEADER = f"""<header class="ec-head"><h1>{TITLE}</h1><p>speculative decoding you can watch</p></header>"""
COMPARE_HINT = """<p class="ec-hint">The same question and seed, answered twice from nothing, one after the other. The
texts must be the same, token for token; the number of passes is not. (Above temperature 0 the rejection rule keeps only
how likely each text is, so there they may differ.) Temperature, seed and tree are those of the chat's settings.</p>"""
LOSSLESS_HINT = """<p class="ec-hint">“Lossless” is a claim about chances: with the draft, every token must be as
likely as without it. Here the same token of an answer is drawn many times, each time with another seed, and
counted beside the probability that the model itself gives it. Choose a rule that is wrong on purpose to see the test
fail. It is the first token for which the draft matters: where a wrong rule would show.</p>"""


def build(service: EngineService, handlers: Handlers, defaults: Controls) -> Any:
    """The whole page as a Gradio app, not yet served."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(600, 600)) as page:
        Endpoints(service, handlers, defaults).declare()  # first, so that the names are theirs
        with gr.Row(elem_classes="ec-top"):
            with gr.Column(scale=5, min_width=260):
                fixed(HEADER)
            with gr.Column(scale=5, min_width=260):
                status = part("html", "", attributes='class="ec-status" role="status"')
            theme = gr.Button("Light or dark", size="sm", scale=0, min_width=110)
        theme.click(fn=None, js="() => EagleChat.toggleTheme()")
        with gr.Tabs():
            with gr.Tab("Chat", id="chat"):
                tree_controls, controls = _chat(service, handlers, defaults)
            if not service.is_server:  # both need the engine's own drafts
                with gr.Tab("Compare", id="compare"):
                    _compare(handlers, controls)
                with gr.Tab("Is it lossless?", id="lossless"):
                    _lossless(handlers, controls)
        outputs = [status, *tree_controls]
        gr.Timer(1.5).tick(handlers.status, outputs=outputs, **QUIET)
        page.load(handlers.status, outputs=outputs, **QUIET)
        page.unload(handlers.leave)
    return page


def _chat(service: EngineService, handlers: Handlers, defaults: Controls) -> tuple[list[Any], list[Any]]:
    """The chat with the explorer, or what a server tells, beside it; the controls of the tree, and all controls."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=5, min_width=320):
            log = 'class="ec-log" role="log" aria-label="Conversation" tabindex="0"'
            welcome = SERVER_WELCOME if service.is_server else WELCOME
            transcript = part("transcript", {"turns": []}, inside=welcome, attributes=log)
            with gr.Row(elem_classes="ec-buttons ec-examples"):
                examples = [gr.Button(text, size="sm", min_width=120) for text in EXAMPLES]
            box = gr.Textbox(
                placeholder="Ask something …  (Enter sends, Esc stops)",
                label="Your question",
                show_label=False,
                max_lines=8,
                autofocus=True,
                elem_id="ec-box",
            )
            with gr.Row(elem_classes="ec-buttons"):
                send = gr.Button("Send", variant="primary", size="sm", elem_id="ec-send")
                stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="ec-stop", elem_id="ec-stop")
                retry = gr.Button("Retry", size="sm", elem_id="ec-retry")
                undo = gr.Button("Undo", size="sm", elem_id="ec-undo")
                edit = gr.Button("Edit", size="sm", elem_id="ec-edit")
                clear = gr.Button("New chat", size="sm", elem_id="ec-clear")
            notice = part("html", "", attributes='class="ec-notice" role="status"', elem_id="ec-notice")
            controls = settings(defaults, _head_choices(service), service.is_server)
        with gr.Column(scale=7, min_width=320):
            inspector = _server(handlers) if service.is_server else _explorer(handlers)
    answering: dict[str, Any] = {
        "fn": handlers.answer,
        "inputs": controls.all,
        "outputs": [box, transcript, inspector, notice, send, stop],
        **STREAM,
    }
    taken = [box, transcript, notice]
    asked = [*taken, send, stop]
    gr.on([send.click, box.submit], handlers.take, box, asked, **QUIET).then(**answering)
    for example in examples:
        example.click(handlers.take_example, example, asked, **QUIET).then(**answering)
    again = [controls.seed, controls.temperature]
    retry.click(handlers.take_again, again, [*asked, controls.seed], **QUIET).then(**answering)
    stop.click(handlers.stop, outputs=notice, **QUIET)
    undo.click(handlers.undo, outputs=[*taken, inspector], **QUIET)
    edit.click(handlers.edit, outputs=[*taken, inspector], **QUIET).then(fn=None, js=_FOCUS)
    clear.click(handlers.clear, outputs=[*taken, inspector], **QUIET)
    return controls.tree, controls.all


def _explorer(handlers: Handlers) -> Any:
    """The explorer, which is returned, and what saves and opens recordings."""
    names = list(recordings.bundled())
    explorer = part("explorer", shown(recordings.first()), elem_id="ec-explorer")
    with gr.Accordion("Save this run, or open a recording", open=False):
        with gr.Row(elem_classes="ec-buttons"):
            jsonl = gr.Button("Save as JSON lines", size="sm", elem_id="ec-save-jsonl")
            html = gr.Button("Save as a page that opens anywhere", size="sm", elem_id="ec-save-html")
        chosen = gr.Dropdown(
            [(name, name) for name in names],
            value=None,
            label="Recordings that come with the program",
            elem_id="ec-bundled",
        )
        upload = gr.File(
            label=f"A recording of yours (.jsonl, at most {limits.UPLOAD >> 20} MiB)",
            file_types=[".jsonl"],
            height=110,
            elem_id="ec-upload",
        )
        notice = _file_notice()
    file = part("save", None, visible="hidden")
    chosen.input(handlers.files.open_bundled, chosen, [explorer, notice], **QUIET)
    upload.upload(handlers.files.open_upload, upload, [explorer, notice], **QUIET)
    jsonl.click(handlers.files.save_jsonl, outputs=[file, notice], **QUIET)
    html.click(handlers.files.save_html, outputs=[file, notice], **QUIET)
    return explorer


def _file_notice() -> Any:
    """What is said of a recording, beside what opens and saves it."""
    return part("html", "", attributes='class="ec-notice" role="status"', elem_id="ec-file-notice")


def _server(handlers: Handlers) -> Any:
    """What a server tells, which is returned, and a button that saves it."""
    inspector = part("html", INTRODUCTION, elem_id="ec-server")
    with gr.Row(elem_classes="ec-buttons"):
        jsonl = gr.Button("Save this chat as JSON lines", size="sm", elem_id="ec-save-jsonl")
    notice = _file_notice()
    file = part("save", None, visible="hidden")
    jsonl.click(handlers.files.save_jsonl, outputs=[file, notice], **QUIET)
    return inspector


_FOCUS = "() => document.querySelector('#ec-box textarea').focus()"


def _head_choices(service: EngineService) -> list[tuple[str, str]]:
    return [("the one loaded at the start", OWN_HEAD), *((name, name) for name in service.heads)]


def _compare(handlers: Handlers, controls: list[Any]) -> None:
    """One question, two ways."""
    fixed(COMPARE_HINT)
    ways = [(label, name) for name, label in WAYS.items()]
    with gr.Row(elem_classes="ec-buttons"):
        question = gr.Textbox(EXAMPLES[0], label="Question", max_lines=4, scale=6, elem_id="ec-compare-box")
        left = gr.Dropdown(ways, value="none", label="Left", scale=2, min_width=140)
        right = gr.Dropdown(ways, value="dynamic", label="Right", scale=2, min_width=140)
    with gr.Row(elem_classes="ec-buttons"):
        start = gr.Button("Compare", variant="primary", size="sm", elem_id="ec-compare")
        stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="ec-stop")
    notice = part("html", "", attributes='class="ec-notice" role="status"')
    verdict = part("html", "", attributes='class="ec-verdict" role="status"', elem_id="ec-verdict")
    lanes = part("lanes", [], attributes='class="ec-lanes"')
    explorer = part("explorer", None)
    with gr.Row(elem_classes="ec-buttons"):
        jsonl = gr.Button("Save both answers as JSON lines", size="sm", elem_id="ec-compare-jsonl")
        page = gr.Button("Save both as a page that opens anywhere", size="sm", elem_id="ec-compare-html")
    file = part("save", None, visible="hidden")
    jsonl.click(handlers.files.save_comparison_jsonl, outputs=[file, notice], **QUIET)
    page.click(handlers.files.save_comparison_html, outputs=[file, notice], **QUIET)
    outputs = [lanes, verdict, explorer, notice, start, stop]
    inputs = [question, left, right, *controls]
    gr.on([start.click, question.submit], handlers.compare, inputs, outputs, **STREAM)
    stop.click(handlers.stop, outputs=notice, **QUIET)


def _lossless(handlers: Handlers, controls: list[Any]) -> None:
    """Many first tokens beside the law."""
    fixed(LOSSLESS_HINT)
    with gr.Row(elem_classes="ec-buttons"):
        prompt = gr.Textbox("Tell me a story about a", label="Question", max_lines=4, scale=5)
        rule = gr.Dropdown(
            [(label, name) for name, label in lossless.RULES.items()],
            value="coupled",
            label="Rule",
            scale=4,
            min_width=240,
            elem_id="ec-rule",
        )
        trees = [(label, name) for name, label in lossless.TREES.items()]
        policy = gr.Dropdown(trees, value="dynamic", label="Draft", scale=2, min_width=130, elem_id="ec-law-tree")
        temperature = gr.Slider(0.1, 2.0, value=1.0, step=0.1, label="Temperature", scale=3)
        draws = gr.Slider(100, limits.DRAWS, value=1000, step=100, label="Draws", scale=3)
    with gr.Row(elem_classes="ec-buttons"):
        start = gr.Button("Draw", variant="primary", size="sm", elem_id="ec-draw")
        stop = gr.Button("Stop", size="sm", interactive=False, elem_classes="ec-stop")
    notice = part("html", "", attributes='class="ec-notice" role="status"')
    picture = part("html", "", elem_id="ec-law")
    inputs = [prompt, rule, policy, draws, temperature, *controls]
    start.click(handlers.sample, inputs, [picture, notice, start, stop], **STREAM)
    stop.click(handlers.stop, outputs=notice, **QUIET)
