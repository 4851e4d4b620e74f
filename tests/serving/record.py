"""Records a server's traffic for `fake_server`: run by hand against a server that is started for it alone.

python -m tests.serving.record http://127.0.0.1:8000 tests/serving/recorded/NAME.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx

from eagle_chat.core.config import SamplingConfig
from eagle_chat.serving.client import Model
from eagle_chat.serving.remote import request_body

QUESTIONS = ("What is a lighthouse for?", "Name three rivers in Europe.")
KEPT = ("vllm:spec_decode_", "vllm:generation_tokens_total", "# TYPE vllm:spec_decode", "# TYPE vllm:generation_tokens")


def main(url: str, out: Path) -> None:
    """Ask, and keep every line as it came; of the counters those that are read."""
    with httpx.Client(base_url=url, timeout=3000) as client:
        listed = client.get("/v1/models").json()
        model = Model(listed["data"][0]["id"], listed["data"][0]["owned_by"])
        pages = [_page(client)]
        answers: list[dict[str, Any]] = []
        for question in QUESTIONS:
            body = request_body(model, [{"role": "user", "content": question}], SamplingConfig(max_new_tokens=24))
            with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
                text = b"".join(response.iter_raw()).decode()
            answers.append({"question": question, "stream": [f"{part}\n\n" for part in text.split("\n\n") if part]})
            pages.append(_page(client))
    # Of the model what the client reads: the rest may name folders of the machine.
    kept = {"object": "list", "data": [{"id": model.id, "object": "model", "owned_by": model.owner}]}
    value = {"models": kept, "pages": pages if any(pages) else [], "answers": answers}
    out.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _page(client: httpx.Client) -> str:
    lines = client.get("/metrics").text.splitlines()
    lines = [line for line in lines if line.startswith(KEPT) and "_created" not in line]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
