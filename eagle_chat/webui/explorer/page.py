"""One self-contained HTML page: data, style and program in a file that opens without a network.

Nothing in the data can become part of the page: it stands in a block that browsers do not run, with every sign that
could end the block escaped, and the page's own policy lets nothing run but the one program it names by its hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from typing import Any

from eagle_chat.core.assets import asset_path

SCRIPTS = (
    *("start", "model", "text", "layout", "steps", "picture", "tip", "viewport", "node", "tree", "cells", "mask"),
    *("answer", "charts", "calibration", "compare", "whatif", "curve", "pay", "words", "transport", "panels", "app"),
)
STYLES = ("explorer", "tree", "panels", "screens")
"""The parts of program and style in `assets/webui/explorer`, in the order in which they are joined."""


@functools.cache
def explorer_assets() -> tuple[str, str]:
    """Style and program, (css, js). The program defines one global, `EagleExplorer`."""
    folder = asset_path("webui", "explorer")
    css = "\n".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    body = "\n".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return css, f'(function () {{\n"use strict";\n{body}\nwindow.EagleExplorer = EagleExplorer;\n}})();\n'


def html_page(data: dict[str, Any], title: str = "A draft tree, cycle by cycle") -> str:
    """The page of `data` (from `page_data`) as the text of an HTML file."""
    css, js = explorer_assets()
    program = (
        f"{js}\nEagleExplorer.mount(document.getElementById('explorer'), "
        "JSON.parse(document.getElementById('explorer-data').textContent), { standalone: true });\n"
    )
    policy = f"default-src 'none'; style-src {_hash(css)}; script-src {_hash(program)}; base-uri 'none'"
    return f"""<!doctype html>
<!-- eagle-chat: a recorded answer with its draft trees -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<style>{css}</style>
</head>
<body class="ee-page">
<main id="explorer"><noscript>This page draws its picture with JavaScript, which is turned off.</noscript></main>
<script type="application/json" id="explorer-data">{_embedded(data)}</script>
<script>{program}</script>
</body>
</html>
"""


def _embedded(data: dict[str, Any]) -> str:
    """JSON that is safe inside a script block, whatever it holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    # Half a surrogate pair, which JSON may hold, cannot be written to a file as it is.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
