"""Chat templates in the public formats of the families in the table, as small as can be, and what two turns look like
in each. Real ones do more (tools, dates); what matters here is their shape: markers, BOS, system role."""

from __future__ import annotations

from dataclasses import dataclass

from eagle_chat.core.templates import jinja_source


@dataclass(frozen=True)
class Format:
    """`template` None: the tokenizer has none, `family` is named instead. `turns`, `with_system`: u1, a1, u2 up to the
    start of the next answer, without and with the system text "Be brief."; `end`: the marker after an answer."""

    special: tuple[str, ...]
    bos: str | None
    eos: str | None
    end: str
    turns: str
    with_system: str
    template: str | None = None
    family: str | None = None
    adds_bos: bool = True


VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
CHATML_TURNS = (
    "<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
    "<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n"
)
QWEN3 = (
    "{%- for m in messages -%}{%- set content = m.content -%}{%- if m.role == 'assistant' -%}"
    "{%- if m.reasoning_content is defined and m.reasoning_content -%}{%- set thought = m.reasoning_content -%}"
    "{%- endif -%}{%- endif -%}{{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}"
    "{%- endif -%}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% elif m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
LLAMA_4 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|header_start|>' + m.role + '<|header_end|>\n\n' + m.content | trim "
    "+ '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\n\n' }}"
    "{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
OLMO = (
    "<|endoftext|>{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content + eos_token "
    "+ '\n' }}{% else %}{{ '<|' + m.role + '|>\n' + m.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
GRANITE = (
    "{% for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}"
)
GLM_4 = (
    "[gMASK]<sop>{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' "
    "+ m.content + ('<|return|>' if loop.last else '<|end|>') }}{% elif m.role == 'system' %}"
    "{{ '<|start|>developer<|message|># Instructions\n\n' + m.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)

FORMATS: dict[str, Format] = {
    "vicuna": Format(
        ("<s>", "</s>"), "<s>", "</s>", "</s>",
        f"<s>{VICUNA_SYSTEM} USER: u1 ASSISTANT: a1</s>USER: u2 ASSISTANT:",
        "<s>Be brief. USER: u1 ASSISTANT: a1</s>USER: u2 ASSISTANT:",
        family="vicuna",
    ),
    "llama-2": Format(
        ("<s>", "</s>"), "<s>", "</s>", "</s>",
        "<s>[INST] u1 [/INST] a1 </s><s>[INST] u2 [/INST]",
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nu1 [/INST] a1 </s><s>[INST] u2 [/INST]",
        family="llama-2",
    ),
    "llama-3": Format(
        ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
        "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nu1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na1<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na1<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        family="llama-3",
    ),
    "mistral": Format(
        ("<s>", "</s>"), "<s>", "</s>", "</s>",
        "<s>[INST] u1 [/INST]a1</s>[INST] u2 [/INST]",
        "<s>[INST] Be brief.\n\nu1 [/INST]a1</s>[INST] u2 [/INST]",
        MISTRAL,
    ),
    "chatml": Format(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), None, "<|im_end|>", "<|im_end|>",
        CHATML_TURNS, "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML_TURNS,
        family="chatml", adds_bos=False,
    ),
    "qwen3": Format(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), None, "<|im_end|>", "<|im_end|>",
        CHATML_TURNS, "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML_TURNS,
        QWEN3, adds_bos=False,
    ),
    "deepseek-r1": Format(
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜><｜User｜>u1<｜Assistant｜>a1<｜end▁of▁sentence｜><｜User｜>u2<｜Assistant｜><think>\n",
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>u1<｜Assistant｜>a1<｜end▁of▁sentence｜>"
        "<｜User｜>u2<｜Assistant｜><think>\n",
        R1,
    ),
    "llama-4": Format(
        ("<|begin_of_text|>", "<|end_of_text|>", "<|eot|>", "<|header_start|>", "<|header_end|>"),
        "<|begin_of_text|>", "<|eot|>", "<|eot|>",
        "<|begin_of_text|><|header_start|>user<|header_end|>\n\nu1<|eot|><|header_start|>assistant<|header_end|>\n\na1"
        "<|eot|><|header_start|>user<|header_end|>\n\nu2<|eot|><|header_start|>assistant<|header_end|>\n\n",
        "<|begin_of_text|><|header_start|>system<|header_end|>\n\nBe brief.<|eot|>"
        "<|header_start|>user<|header_end|>\n\nu1<|eot|><|header_start|>assistant<|header_end|>\n\na1"
        "<|eot|><|header_start|>user<|header_end|>\n\nu2<|eot|><|header_start|>assistant<|header_end|>\n\n",
        LLAMA_4,
    ),
    "olmo": Format(
        ("<|endoftext|>",), None, "<|endoftext|>", "<|endoftext|>",
        "<|endoftext|><|user|>\nu1\n<|assistant|>\na1<|endoftext|>\n<|user|>\nu2\n<|assistant|>\n",
        "<|endoftext|><|system|>\nBe brief.\n<|user|>\nu1\n<|assistant|>\na1<|endoftext|>\n<|user|>\nu2\n"
        "<|assistant|>\n",
        OLMO, adds_bos=False,
    ),
    "granite": Format(
        ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"), None, "<|end_of_text|>", "<|end_of_text|>",
        "<|start_of_role|>user<|end_of_role|>u1<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>a1<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>u2<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>u1<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>a1<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>u2<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
        GRANITE, adds_bos=False,
    ),
    "glm-4": Format(
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"), None, "<|endoftext|>",
        "<|endoftext|>",
        "[gMASK]<sop><|user|>\nu1<|assistant|>\na1<|user|>\nu2<|assistant|>\n",
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nu1<|assistant|>\na1<|user|>\nu2<|assistant|>\n",
        GLM_4, adds_bos=False,
    ),
    "harmony": Format(
        ("<|startoftext|>", "<|return|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>"),
        "<|startoftext|>", "<|return|>", "<|return|>",
        "<|start|>user<|message|>u1<|end|><|start|>assistant<|channel|>final<|message|>a1<|end|>"
        "<|start|>user<|message|>u2<|end|><|start|>assistant",
        "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|><|start|>user<|message|>u1<|end|>"
        "<|start|>assistant<|channel|>final<|message|>a1<|end|><|start|>user<|message|>u2<|end|><|start|>assistant",
        HARMONY, adds_bos=False,
    ),
    "gemma": Format(
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<bos>", "<eos>", "<end_of_turn>",
        "<bos><start_of_turn>user\nu1<end_of_turn>\n<start_of_turn>model\na1<end_of_turn>\n"
        "<start_of_turn>user\nu2<end_of_turn>\n<start_of_turn>model\n",
        "<bos><start_of_turn>user\nBe brief.\n\nu1<end_of_turn>\n<start_of_turn>model\na1<end_of_turn>\n"
        "<start_of_turn>user\nu2<end_of_turn>\n<start_of_turn>model\n",
        family="gemma",
    ),
}  # fmt: skip


def source(name: str) -> str | None:
    """The template that a tokenizer of this family would bring; None where fschat has it."""
    wanted = FORMATS[name]
    return wanted.template or jinja_source(wanted.family or "")
