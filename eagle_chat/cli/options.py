"""The shared options, declared once.

`Given` is the one list of them. From it come the options of every command (`shared_options`), the keys of the
config file and the environment variables (`settings`). Defaults live in the config dataclasses and are only
read here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from eagle_chat.core.config import (
    AttentionName,
    DtypeName,
    LoadConfig,
    PolicyName,
    SamplingConfig,
    TreeConfig,
    VerifyRule,
)
from eagle_chat.core.errors import UserError
from eagle_chat.serving.config import ServerConfig


@dataclass(frozen=True, kw_only=True)
class Given:
    """The shared options as a person gave them; None: not given."""

    base: Annotated[str | None, typer.Option(metavar="NAME", help="Target: alias, hub id, folder or GGUF file.")] = None
    draft: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Draft head: hub id, folder, or none. Without it: the target's own head."),
    ] = None
    policy: Annotated[PolicyName | None, typer.Option(help="How to draft. Without it: what suits the head.")] = None
    depth: Annotated[int | None, typer.Option(help="Most drafted tokens on one path.")] = None
    top_k: Annotated[int | None, typer.Option(help="Children of each expanded node of the draft tree.")] = None
    total_tokens: Annotated[
        int | None,
        typer.Option(help="Nodes sent to the target, root included; -1 chooses by measurement, cycle by cycle."),
    ] = None
    shared_noise: Annotated[
        bool | None,
        typer.Option(
            "--shared-noise/--no-shared-noise",
            help="Above temperature 0, draft with the noise that the target draws with. Without it: on.",
        ),
    ] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None
    top_p: Annotated[float | None, typer.Option(help="Sample from this share of the probability.")] = None
    sample_top_k: Annotated[int | None, typer.Option(help="Sample from this many best tokens; 0 is off.")] = None
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the best one's probability.")] = (
        None
    )
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None
    verify: Annotated[VerifyRule | None, typer.Option(help="Lossless rule for drafts above temperature 0.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the answer before this text. May be repeated."),
    ] = None
    ignore_stop_ids: Annotated[
        bool | None,
        typer.Option(hidden=True, help="Go on past the model's own stop tokens (for measurements)."),
    ] = None
    dtype: Annotated[DtypeName | None, typer.Option(help="Number format of the weights.")] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None
    device_map: Annotated[
        str | None,
        typer.Option(metavar="MAP", help="Spread the target over devices, as accelerate does: auto, ..."),
    ] = None
    load_in_8bit: Annotated[
        bool | None, typer.Option("--load-in-8bit/--no-load-in-8bit", help="Quantise the target to 8 bits.")
    ] = None
    load_in_4bit: Annotated[
        bool | None, typer.Option("--load-in-4bit/--no-load-in-4bit", help="Quantise the target to 4 bits.")
    ] = None
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the target on the hub.")] = None
    draft_revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of the head on the hub.")] = None
    trust_remote_code: Annotated[
        bool | None,
        typer.Option("--trust-remote-code", help="Run the Python code that comes with the target. Read it first."),
    ] = None
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Prompt format, where the tokenizer has none or a wrong one: family or file."
        ),
    ] = None
    attention: Annotated[AttentionName | None, typer.Option(help="How the target computes attention.")] = None
    taps: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Hidden states an EAGLE-3 head reads. Without it: as its checkpoint says."),
    ] = None
    draft_vocab: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE", help="Tokens an eagle head may draft: the first N, or a JSON list. Without: all."
        ),
    ] = None
    draft_int8: Annotated[
        bool | None,
        typer.Option(
            "--draft-int8/--no-draft-int8",
            help="On a CPU, round a large head's weights to 8 bits: quicker drafts, the same answers. Default: yes.",
        ),
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Chat through this OpenAI-compatible server. For serve: vllm or sglang, to be started."
        ),
    ] = None
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="What a server is sent, or for serve asks for.")
    ] = None
    system: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="System message; @authors: that of the papers' runs. Without it: the model's own, if it has one.",
        ),
    ] = None
    thinking: Annotated[
        bool | None,
        typer.Option(help="Whether a model that can be told shall think. Without it: as its template does."),
    ] = None
    show_thinking: Annotated[
        bool | None, typer.Option("--show-thinking/--hide-thinking", help="Show the reasoning of models that think.")
    ] = None
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with defaults for these options.")] = (
        None
    )

    def over(self, other: Self | None) -> Self:
        """These options, and those of `other` where nothing is given here."""
        return self if other is None else dataclasses.replace(other, **given_values(self))


@dataclass(frozen=True)
class Settings:
    """The options as the engine takes them."""

    load: LoadConfig
    tree: TreeConfig
    sampling: SamplingConfig
    system: str | None
    show_thinking: bool = True
    server: ServerConfig = field(default_factory=ServerConfig)


Config: TypeAlias = LoadConfig | TreeConfig | SamplingConfig | ServerConfig
CONFIGS: tuple[type[Config], ...] = (LoadConfig, TreeConfig, SamplingConfig, ServerConfig)


def home_of(option: str) -> tuple[type[Config], str] | None:
    """The config dataclass and field that an option sets."""
    if option == "sample_top_k":
        return SamplingConfig, "top_k"  # --top-k is the tree's
    found = (config for config in CONFIGS if option in config.__dataclass_fields__)
    return next(((config, option) for config in found), None)


def given_values(options: object) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in vars(options).items() if value is not None and value != []}


def build(values: dict[str, Any]) -> Settings:
    """The configs from option values by name; UserError where one of them is not possible."""
    chosen: dict[type[Config], dict[str, Any]] = {config: {} for config in CONFIGS}
    for option, value in values.items():
        home = home_of(option)
        if home is not None:
            chosen[home[0]][home[1]] = parse_taps(value) if option == "taps" else _frozen(value)
    return Settings(
        load=LoadConfig(**chosen[LoadConfig]),
        tree=TreeConfig(**chosen[TreeConfig]),
        sampling=SamplingConfig(**chosen[SamplingConfig]),
        system=_system(values.get("system"), values.get("base", LoadConfig.base)),
        show_thinking=values.get("show_thinking", True),
        server=ServerConfig(**chosen[ServerConfig]),
    )


def _system(asked: str | None, base: str) -> str | None:
    """The system text, with the authors' own looked up for the target's family."""
    from eagle_chat.core import registry, templates

    if asked != templates.AUTHORS:
        return asked
    entry = registry.lookup(base) if registry.is_alias(base) or base.count("/") == 1 else None
    return templates.system_text(asked, entry.family if entry else None)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def parse_taps(text: str) -> tuple[int, int, int]:
    """Three layer numbers from "2,8,13"."""
    try:
        first, second, third = (int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"taps must be three numbers, found {text!r}: give them as --taps 2,15,27, low to high"
        ) from None
    return first, second, third


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(ctx, ...)` every shared option; it finds them as a `Given` in `ctx.obj`.

    Options may stand before the command's name as well as after it; the later ones win. Where the command has an
    option of that name itself (several temperatures in a benchmark), its own is taken.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_with_default(name, hint))
        for name, hint in get_type_hints(Given, include_extras=True).items()
        if name not in {parameter.name for parameter in own}
    ]

    @functools.wraps(command)
    def wrapper(ctx: typer.Context, **values: Any) -> None:
        given = Given(**{parameter.name: values.pop(parameter.name) for parameter in shared})
        ctx.obj = given.over(ctx.obj)
        command(ctx, **values)

    parameters = [
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *shared,
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # the way inspect looks for it
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _with_default(option: str, hint: Any) -> Any:
    """The annotation with the config's default in its help."""
    home = home_of(option)
    default = home[0].__dataclass_fields__[home[1]].default if home else None
    value_type, info = get_args(hint)
    shown: OptionInfo = copy(info)
    if default is not None and default is not False and default != ():
        shown.help = f"{shown.help} [default: {default}]"
    return Annotated[value_type, shown]
