"""Options that can be changed while the program runs: those of sampling and of the tree."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, get_type_hints

from eagle_chat.cli.options import Given, Settings, home_of
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError

DEFAULT = "default"
"""The word that takes an option back to its default."""


def names() -> list[str]:
    """The options that can be set, in the order of the help."""
    homes = {name: home_of(name) for name in get_type_hints(Given)}
    return [name for name, home in homes.items() if home is not None and home[0] in (TreeConfig, SamplingConfig)]


def values(settings: Settings) -> dict[str, Any]:
    """Option names and what they are now, as JSON-ready values."""
    found = {}
    for name in names():
        config, attribute = _home(name)
        value = getattr(settings.sampling if config is SamplingConfig else settings.tree, attribute)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def assign(settings: Settings, assignment: str) -> tuple[Settings, str]:
    """The settings after `name=value`, and the option's name; UserError where there is no such option or value."""
    key, equals, text = assignment.partition("=")
    name, text = key.strip().lstrip("-").replace("-", "_"), text.strip()
    if name not in names():
        raise UserError(_unknown(name))
    if not equals:
        raise UserError(f"a value expected, found {assignment!r}: give /set {name}=VALUE")
    return put(settings, {name: _value(name, text)}), name


def put(settings: Settings, changed: dict[str, Any]) -> Settings:
    """`settings` with the options of `changed`; None is the default. UserError where one is not possible."""
    for name, value in changed.items():
        if name not in names():
            raise UserError(_unknown(name))
        config, attribute = _home(name)
        if value is None:
            value = config.__dataclass_fields__[attribute].default
        fields: dict[str, Any] = {attribute: tuple(value) if isinstance(value, list) else value}
        if config is SamplingConfig:
            settings = dataclasses.replace(settings, sampling=dataclasses.replace(settings.sampling, **fields))
        else:
            settings = dataclasses.replace(settings, tree=dataclasses.replace(settings.tree, **fields))
    return settings


def _home(name: str) -> tuple[Any, str]:
    home = home_of(name)
    assert home is not None
    return home


def _value(name: str, text: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    if text == DEFAULT:
        return None
    hint = get_type_hints(Given)[name]
    given: Any = ([text] if text else []) if name == "stop" else text
    try:
        return TypeAdapter(hint).validate_python(given)
    except ValidationError as error:
        raise UserError(f"{name}: {error.errors()[0]['msg']}, found {text!r}: change it") from error


def _unknown(name: str) -> str:
    if name in get_type_hints(Given):
        return f"{name} is fixed once a model is loaded: give --{name.replace('_', '-')} at the start, or /model NAME"
    close = difflib.get_close_matches(name, names(), n=1)
    remedy = f"did you mean {close[0]}?" if close else f"they are {', '.join(names())}"
    return f"an option expected, found {name!r}: {remedy}"
