"""Command line options from the fields of a config dataclass, so that each setting is declared once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from eagle_chat.core.errors import UserError


def with_options(config: type, helps: dict[str, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give `command(..., values)` an option for every field of `config` named in `helps`.

    It finds those that were given in the dictionary `values`, in the types of the fields. Fields that are tuples take
    commas, or the option again.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "values"]
        hints = get_type_hints(config)

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            values = {name: given.pop(name) for name in helps}
            chosen = {name: value for name, value in values.items() if value is not None and value != []}
            command(**given, values={name: _typed(name, value, hints[name]) for name, value in chosen.items()})

        options = [_option(config, name, hints[name], text) for name, text in helps.items()]
        parameters = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *options]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # where inspect looks
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapper

    return decorate


def _option(config: type, name: str, hint: Any, text: str) -> inspect.Parameter:
    default = config.__dataclass_fields__[name].default  # type: ignore[attr-defined]  # any dataclass
    if default not in (dataclasses.MISSING, None, False, "", ()):
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        text = f"{text} [default: {shown}]"
    kind = _kind(hint)
    flag = f"--{name.replace('_', '-')}"
    declared = f"{flag}/--no-{name.replace('_', '-')}" if kind is bool else flag
    info = typer.Option(declared, help=text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _kind(hint: Any) -> Any:
    """The type that the command line reads for a field's type."""
    if get_origin(hint) is tuple:
        return list[str]
    if get_origin(hint) in (types.UnionType, typing.Union):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


def _typed(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is not tuple:
        return value
    item = get_args(hint)[0]
    parts = value if item is str else [part for text in value for part in text.split(",")]
    try:
        return tuple(item(part) for part in parts)
    except ValueError:
        kind = "whole numbers" if item is int else "numbers"
        raise UserError(
            f"{kind} expected for --{name.replace('_', '-')}, found {','.join(parts)}: separate them by commas"
        ) from None
