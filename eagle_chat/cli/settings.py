"""Defaults from a config file and from EAGLE_CHAT_* variables.

A flag goes before a variable, a variable before the file, the file before the built-in default.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from eagle_chat.cli.options import Given, Settings, build, given_values
from eagle_chat.core.errors import UserError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_settings import BaseSettings

PREFIX = "EAGLE_CHAT_"


def resolve(given: Given) -> Settings:
    """The settings of this run; UserError where the file, a variable or an option is wrong."""
    path = given.config or _environment_config() or _default_config()
    values = _file_values(path) if path else {}
    return build({**_checked(values, path), **given_values(given)})


def _environment_config() -> Path | None:
    named = os.environ.get(f"{PREFIX}CONFIG")
    return Path(named).expanduser() if named else None


def _default_config() -> Path | None:
    from platformdirs import user_config_path

    path = user_config_path("eagle-chat", appauthor=False) / "config.toml"
    return path if path.is_file() else None


def _file_values(path: Path) -> dict[str, Any]:
    """The file's keys (dashes or underscores) and values; unknown keys are refused."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(
            f"a config file expected at {path}, found none to read ({error.strerror}): change --config"
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UserError(f"{path} must be a TOML file, found: {error}: correct it") from error
    values = {key.replace("-", "_"): value for key, value in read.items()}
    for key in values:
        if key not in _names():
            close = difflib.get_close_matches(key, _names(), n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(_names())}"
            raise UserError(f"{path}: unknown key {key!r}: {remedy}")
    return values


def _names() -> list[str]:
    return [name for name in get_type_hints(Given) if name != "config"]


def _checked(values: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """`values` of the file, variables put over them, all of the right type."""
    from pydantic import ValidationError

    try:
        return given_values(_model()(**values))
    except ValidationError as error:
        raise UserError(_explain(error, path)) from error


def _explain(error: ValidationError, path: Path | None) -> str:
    problem = error.errors()[0]
    key = str(problem["loc"][0])
    variable = PREFIX + key.upper()
    where = f"variable {variable}" if os.environ.get(variable) else f"{path}: {key}"
    return f"{where}: {problem['msg']}, found {problem['input']!r}: change it"


def _model() -> type[BaseSettings]:
    """A pydantic model with one field for each shared option."""
    from pydantic import create_model, field_validator
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

    class Defaults(BaseSettings):
        # Variables are taken as they stand: a stop text that looks like JSON is still a text.
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, enable_decoding=False)

        @field_validator("stop", mode="before", check_fields=False)
        @classmethod
        def _one_or_more(cls, value: Any) -> Any:
            return [value] if isinstance(value, str) else value

        @field_validator("taps", mode="before", check_fields=False)
        @classmethod
        def _joined(cls, value: Any) -> Any:
            return ",".join(map(str, value)) if isinstance(value, list) else value

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],  # noqa: ARG003 - the library's signature
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return env_settings, init_settings

    hints = get_type_hints(Given)
    fields: dict[str, Any] = {name: (hints[name], None) for name in _names()}
    return create_model("OptionDefaults", __base__=Defaults, **fields)
