"""Questions in OpenAI's form, checked field by field. What would change the answer and cannot be met is refused; what
would not is left alone."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from eagle_chat.core.chat import Message
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.errors import UserError


class UnknownModelError(UserError):
    """Another model than the served one was asked for."""


class TextPart(BaseModel):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A turn. The role "developer" is OpenAI's newer word for "system"."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def message(self) -> Message:
        """As our templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(BaseModel):
    """What comes with a stream beside the text. `continuous_usage_stats`: usage in every chunk (as in vLLM)."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ChatRequest(BaseModel):
    """A request of /v1/chat/completions. Fields from `top_k` on are beyond OpenAI's, named as vLLM names them."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=0)
    max_completion_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    presence_penalty: float | None = Field(default=None, ge=0, le=0)
    frequency_penalty: float | None = Field(default=None, ge=0, le=0)
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = Field(default=None, ge=1, le=1)
    ignore_eos: bool = False
    return_token_ids: bool = False
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    tools: list[Any] | None = Field(default=None, max_length=0)
    response_format: dict[str, Any] | None = None

    @field_validator("stream_options", mode="before")
    @classmethod
    def _absent(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("response_format")
    @classmethod
    def _text_only(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and value.get("type") != "text":
            raise ValueError("this engine answers in free text only")
        return value

    def conversation(self) -> list[Message]:
        """The messages as our templates take them."""
        return [message.message() for message in self.messages]

    def sampling(self, default: SamplingConfig) -> SamplingConfig:
        """How to answer: the request's own wishes over the server's. UserError where one is not possible.

        Without a seed in the request each answer is drawn anew.
        """
        given = {
            "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "max_new_tokens": self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
        }  # fmt: skip
        chosen = {**vars(default), **{name: value for name, value in given.items() if value is not None}}
        chosen["top_k"] = max(chosen["top_k"], 0)  # -1 is off in vLLM
        chosen["seed"] = secrets.randbits(31) if self.seed is None else self.seed
        chosen["ignore_stop_ids"] = self.ignore_eos or default.ignore_stop_ids
        return SamplingConfig(**chosen)
