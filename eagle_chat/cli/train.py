"""`eagle-chat train`: make a corpus, fit a head, evaluate it, export it."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from eagle_chat.cli.dataclass_options import with_options
from eagle_chat.cli.text import say
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import reporting
from eagle_chat.training.config import CorpusConfig, TrainConfig, from_toml

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message

INTERRUPTED = 130
app = typer.Typer(
    help="Make a draft head: text, training, evaluation, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
ConfigFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TOML file with any of the settings; options go before it.")
]
_TARGET = {
    "base": "Target: alias, hub id, folder or GGUF file.",
    "revision": "Branch, tag or commit of the target on the hub.",
    "template": "Prompt format, where the tokenizer has none or a wrong one.",
    "dtype": "Number format of the target: auto, float32, bfloat16, float16.",
    "device": "auto, cpu or cuda.",
    "load_in_8bit": "Quantise the target to 8 bits.",
    "load_in_4bit": "Quantise the target to 4 bits.",
}
_CORPUS = {
    "out": "Folder for the shards. An unfinished corpus there is continued.",
    "source": "File, folder or hub data set with conversations. Without one the target writes the questions itself.",
    "split": "Which split of a hub data set.",
    "regenerate": "Let the target answer the questions of the source anew.",
    "answers": "Conversations in all; 0: all of the source, or 1000 without one.",
    "batch": "Conversations decoded together, and written together.",
    "temperatures": "Temperatures of the answers, in turn.",
    "question_temperature": "Temperature at which the target writes questions.",
    "question_min_p": "Questions avoid tokens below this share of the best one's probability.",
    "max_question_tokens": "A question that is longer is refused.",
    "max_new_tokens": "Longest answer.",
    "min_answer_tokens": "A shorter answer is refused.",
    "min_question_words": "A shorter question is refused.",
    "keep_loops": "Keep answers that end by going in circles.",
    "exclude": "File with questions to keep out. May be repeated.",
    "exclude_words": "Words in a row that a question must not share with those.",
    "system": "System message.",
    "seed": "The same seed gives the same corpus.",
}
_FIT = {
    "data": "File, folder or hub data set to train on. May be repeated.",
    "out": "Folder of the run. A run there is continued.",
    "head": "Architecture of the head.",
    "exclude": "File with questions to keep out of the text. May be repeated.",
    "split": "Which split of a hub data set.",
    "system": "System message for conversations that have none.",
    "max_length": "Longer samples are cut to so many tokens.",
    "validation": "Share of the questions held out.",
    "start": "Begin with the target's own weights, or at random.",
    "from_head": "Begin with the head in this folder.",
    "draft_vocab": "Size of an eagle3 head's vocabulary.",
    "taps": "The three hidden states an eagle3 head reads.",
    "norm_before_fc": "EAGLE-3.1: norm each tap.",
    "norm_output": "EAGLE-3.1: feed the normed output back.",
    "unroll": "Steps of the training-time test, or a plan over the run.",
    "step_decay": "Weight of step j is this to the power of j.",
    "regression_weight": "Weight of an eagle head's feature regression.",
    "classification_weight": "Weight of an eagle head's token loss.",
    "loss_vocab": "Token loss of an eagle head over so many frequent tokens; 0: all.",
    "scale_regression": "Measure the regression in units of the features' size.",
    "noise": "Uniform noise on an eagle head's input features.",
    "dropout": "Dropout on the head's hidden input.",
    "steps": "Optimiser steps; 0: by epochs.",
    "epochs": "Passes over the data.",
    "batch_tokens": "Tokens of one forward, padding included.",
    "accumulate": "Such batches for one optimiser step.",
    "learning_rate": "Highest learning rate.",
    "warmup": "Share of the steps in which the rate rises.",
    "schedule": "How it falls.",
    "final_rate": "Share of the rate at the end.",
    "weight_decay": "Weight decay of matrices.",
    "clip": "Longest gradient.",
    "ema": "Decay of averaged weights; 0: none.",
    "seed": "The same seed gives the same curve.",
    "features": "Run the target in every epoch, or once to disk.",
    "features_dtype": "Number format on disk.",
    "features_folder": "Where features go, if not to the run's folder.",
    "precision": "Mixed precision by accelerate.",
    "evaluate_every": "Steps between validations.",
    "evaluate_samples": "Samples of a validation.",
    "save_every": "Steps between checkpoints.",
    "keep_checkpoints": "Checkpoints kept.",
    "minutes": "Stop after so many minutes, to be continued; 0: never.",
    "tracker": "Also log to tensorboard or trackio.",
}


@app.command()
@with_options(CorpusConfig, {**_CORPUS, **_TARGET})
def corpus(values: dict[str, Any], config: ConfigFile = None) -> None:
    """Make training text: the target asks and answers itself, or conversations come from files."""
    settings = from_toml(CorpusConfig, config, values)
    from eagle_chat.core.files import make_folder
    from eagle_chat.training import conversations, filters
    from eagle_chat.training.corpus import make_corpus
    from eagle_chat.training.prepare import load_target
    from eagle_chat.training.shards import Shards
    from eagle_chat.training.summary import listed, refusals, summarise

    # A wrong path should not cost a model's loading.
    filters.read_exclusion(settings.exclude, settings.exclude_words)
    shards = Shards(Path(settings.out).expanduser())
    make_folder(shards.folder)
    say(f"loading {settings.base} ...", quiet=True)
    target, chat = load_target(settings)
    with reporting() as report:
        make_corpus(settings, target, chat, report)
    for line in summarise(conversations.read([settings.out]), chat).lines():
        say(line)
    for what in ("refused", "shortened"):
        reasons = refusals(shards.notes(), what)
        if reasons:
            say(f"{what}: {listed(reasons)}")


@app.command()
@with_options(TrainConfig, {**_FIT, **_TARGET})
def fit(values: dict[str, Any], config: ConfigFile = None) -> None:
    """Train a head. Started again with the same settings, it goes on where it stopped."""
    settings = from_toml(TrainConfig, config, values)
    from eagle_chat.training.fit import fit as run

    with reporting() as report:
        ending = run(settings, say, report)
    if ending != "finished":
        say(f"{ending}: saved in {settings.out}; the same command goes on from there")
    if ending == "interrupted":
        raise typer.Exit(INTERRUPTED)


@app.command()
def evaluate(
    draft: Annotated[Path, typer.Option(metavar="FOLDER", help="Exported head.")],
    base: Annotated[str, typer.Option(help=_TARGET["base"])] = "smollm2",
    data: Annotated[
        list[str] | None, typer.Option(help="Conversations for offline acceptance; their held-out part is used.")
    ] = None,
    questions: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Questions to answer live: JSONL, or one a line.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Questions, and held-out samples, at most.")] = 40,
    validation: Annotated[
        float, typer.Option(min=0, max=1, help="Share held out, as in training; 0 takes all.")
    ] = 0.03,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the training-time test.")] = 4,
    depth: Annotated[int | None, typer.Option(help="Depth of the draft tree.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Children of each expanded node.")] = None,
    total_tokens: Annotated[int | None, typer.Option(help="Nodes of the draft tree.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of sampled answers.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    dtype: Annotated[str, typer.Option(help=_TARGET["dtype"])] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    template: Annotated[str | None, typer.Option(metavar="FAMILY", help=_TARGET["template"])] = None,
    revision: Annotated[str | None, typer.Option(metavar="NAME", help=_TARGET["revision"])] = None,
    load_in_8bit: Annotated[bool, typer.Option("--load-in-8bit", help=_TARGET["load_in_8bit"])] = False,
    load_in_4bit: Annotated[bool, typer.Option("--load-in-4bit", help=_TARGET["load_in_4bit"])] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help=_FIT["system"])] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure a head: offline acceptance by step, and live τ; warns where the two disagree."""
    if not data and not questions:
        raise UserError("--data or --questions expected, found neither: give conversations, questions, or both")
    import eagle_chat
    from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
    from eagle_chat.training import evaluate as evaluation

    asked = _questions(questions, limit, system)
    say(f"loading {base} with {draft} ...", quiet=True)
    loading: Any = {"base": base, "draft": str(draft), "dtype": dtype, "device": device, "template": template}
    loading |= {"revision": revision, "load_in_8bit": load_in_8bit, "load_in_4bit": load_in_4bit}
    engine = eagle_chat.load_engine(LoadConfig(**loading))
    figures: dict[str, Any] = {"target": base, "head": str(draft), "dtype": str(engine.target.dtype)}
    if data:
        figures["offline"] = evaluation.offline(engine, data, validation, limit, steps, system)
    if asked:
        tree = TreeConfig(depth=depth, top_k=top_k, total_tokens=total_tokens)
        sampling = SamplingConfig(temperature=temperature, seed=seed, max_new_tokens=max_new_tokens)
        figures["live"] = dataclasses.asdict(evaluation.live(engine, asked, tree, sampling, steps))
    _show(figures, as_json)


def _questions(files: list[str] | None, limit: int, system: str | None) -> list[list[Message]]:
    """The first question of each row as a conversation."""
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    from eagle_chat.training.filters import read_questions

    return [[*start, {"role": "user", "content": text}] for text in read_questions(files or [])[:limit]]


def _show(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
    offline, live = figures.get("offline"), figures.get("live")
    if offline and not as_json:
        shares = "/".join(f"{share:.3f}" for share in offline["by_step"])
        sys.stdout.write(f"offline acceptance by step {shares}, chain tau {offline['chain_tau']:.2f}\n")
    if live and not as_json:
        depths = "/".join(f"{share:.3f}" for share in live["accept_by_depth"])
        sys.stdout.write(
            f"live tau {live['tau']:.2f} ({live['questions']} questions, {live['tokens']} tokens); chain: tau "
            f"{live['chain_tau']:.2f} live, {live['replayed_chain_tau']:.2f} replayed offline, acceptance {depths}\n"
        )
    if live and live["warning"]:
        say(f"warning: {live['warning']}")


@app.command()
def export(
    run: Annotated[Path, typer.Option(metavar="FOLDER", help="The run's folder.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the head goes.")],
    weights: Annotated[str, typer.Option(help="best (by validation) or last.")] = "best",
    figures: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output of evaluate --json, for the card.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="published, which all engines read, or speculators, which vLLM starts from alone.")
    ] = "published",
    chain: Annotated[int, typer.Option(min=1, help="Drafted tokens a step, for the layout speculators.")] = 3,
) -> None:
    """Write a trained head in the published layout, or in that of speculators, with a card."""
    if layout not in ("published", "speculators"):
        raise UserError(f"published or speculators expected for --layout, found {layout!r}: choose one of these")
    if weights not in ("best", "last"):
        raise UserError(f"best or last expected for --weights, found {weights!r}: choose one of these")
    from eagle_chat.core.files import PUBLIC, write_atomic
    from eagle_chat.serving.chains import FIGURES
    from eagle_chat.training.export import export as write
    from eagle_chat.training.export import read_figures

    told = read_figures(figures) if figures is not None else None
    done = write(run, out, f"{weights}.pt", told, cast(Any, layout), chain)
    if figures is not None:  # engines that draft chains choose their length by them
        write_atomic(out / FIGURES, figures.read_bytes(), PUBLIC)
    say(f"step {done['step']:,}, {done['parameters']:,} numbers, written to {done['folder']}")
