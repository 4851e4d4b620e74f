"""The slash commands: what each is called, takes, means and does."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_chat.cli import adjust, compare, meters, session, stats, store, tree_view
from eagle_chat.cli.export import export
from eagle_chat.cli.progress import Progress
from eagle_chat.cli.text import say
from eagle_chat.core.conversation import Conversation, Turn
from eagle_chat.core.errors import UserError
from eagle_chat.core.metrics import Metrics, same_text

if TYPE_CHECKING:
    from eagle_chat.cli.chat import Chat

Handler = Callable[["Chat", str], object]


@dataclass(frozen=True)
class Command:
    """One command. `run` gets the text after the name; what it returns does not matter."""

    argument: str
    meaning: str
    run: Handler
    words: tuple[str, ...] = ()


def run(chat: Chat, name: str, argument: str) -> bool:
    """Do what the line asks; whether the chat goes on. UserError where it cannot be done."""
    if name == "/quit":
        return False
    command = COMMANDS.get(name)
    if command is None:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else "/help lists them"
        say(f"unknown command {name}; {hint} (begin the line with a blank to send it as a question)")
        return True
    command.run(chat, argument.strip())
    return True


def completions(chat: Chat, line: str) -> Iterator[tuple[str, str]]:
    """What could stand at the end of `line`."""
    name, blank, rest = line.partition(" ")
    if not blank:
        yield from ((word, command.meaning) for word, command in COMMANDS.items() if word.startswith(name))
    elif name == "/set" and " " not in rest:
        values = adjust.values(chat.session.settings)
        yield from ((f"{key}=", f"now {values[key]}") for key in values if key.startswith(rest))
    elif name == "/load":
        yield from ((word, "saved conversation") for word in store.saved_names() if word.startswith(rest))
    elif name in COMMANDS:
        yield from ((word, "") for word in COMMANDS[name].words if word.startswith(rest) and word != rest)


def _help(_chat: Chat, _: str) -> None:
    for name, command in COMMANDS.items():
        say(f"{' '.join(filter(None, (name, command.argument)))} - {command.meaning}", quiet=True)


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.system = None if text == adjust.DEFAULT else text
    said = chat.conversation.system
    say("the system message is the model's own" if said is None else f"system message: {said}", quiet=True)


def _set(chat: Chat, text: str) -> None:
    if not text:
        for name, value in adjust.values(chat.session.settings).items():
            say(f"{name}={'(what suits the head)' if value is None else value}", quiet=True)
        return
    try:
        words = [text] if text.startswith("stop") else shlex.split(text)
    except ValueError as error:
        raise UserError(f"k=v expected, found {text!r} ({error}): close the quotation") from error
    settings = chat.session.settings
    changed = []
    for word in words:
        settings, name = adjust.assign(settings, word)
        changed.append(name)
    chat.session.settings = settings
    for name in changed:
        say(f"{name}={adjust.values(settings)[name]}", quiet=True)


def _last(chat: Chat) -> Turn:
    if chat.conversation.last is None:
        raise UserError("an answer expected, found none yet: ask something first")
    return chat.conversation.last


def _regen(chat: Chat, _: str) -> None:
    turn = _last(chat)
    sampling = chat.session.settings.sampling
    if sampling.greedy:
        say("(temperature 0 gives the same answer again; /set temperature=0.7 for others)", quiet=True)
    with chat.changed_seed(sampling.seed if sampling.greedy else turn.seed + 1):
        chat.ask(turn.question, chat.conversation.before_last())


def _undo(chat: Chat, _: str) -> None:
    turn = _last(chat)
    chat.conversation = chat.conversation.before_last()
    say(f"taken back: {turn.question}", quiet=True)


def _edit(chat: Chat, text: str) -> None:
    turn = _last(chat)
    if text:
        chat.ask(text, chat.conversation.before_last())
        return
    chat.default, chat.editing = turn.question, True
    say("change the question and send it: the new answer replaces the last one", quiet=True)


def _continue(chat: Chat, _: str) -> None:
    turn = _last(chat)
    if turn.finish_reason == "stop":
        raise UserError("an answer that was cut short expected, found one that the model ended itself: ask for more")
    if turn.target != chat.session.settings.load.base or not turn.token_ids:
        raise UserError("an answer of this model expected, found one of another: /regen asks this one")
    model = chat.session.engine.chat
    before = chat.conversation.before_last().messages(turn.question)
    text = turn.answer
    chat.complete(turn, [*model.encode(before), *turn.token_ids])
    # Some tokenizers drop the blank in front of the first token of a text: the whole decodes to what was meant.
    added = turn.answer[len(text) :]
    if model.decode(turn.token_ids).startswith(f"{text} {added}"):
        turn.answer = f"{text} {added}"


def _clear(chat: Chat, _: str) -> None:
    # The decoding state stays: what the next prompt shares with its tokens is not computed again.
    chat.conversation = Conversation(chat.conversation.system)
    say("the conversation starts anew", quiet=True)


def _save(chat: Chat, name: str) -> None:
    path = store.place(name)
    if path in (store.last_conversation(), store.previous_conversation()):
        raise UserError(f"another name expected than {name}, which the program keeps for itself: choose one")
    if path.exists():
        try:
            session.load(path)
        except UserError as error:  # it may be anything
            raise UserError(f"{path} is there already and no saved conversation: choose another name") from error
    session.save(path, chat.saved(), with_events=True)
    say(f"saved: {path}", quiet=True)


def _load(chat: Chat, name: str) -> None:
    if not name:
        names = store.saved_names()
        say(f"saved conversations: {', '.join(names)}" if names else "no conversation is saved yet", quiet=True)
        say("/load last takes up the last one", quiet=True)
        return
    saved = session.load(store.place(name))
    options = dict(saved.options)
    drafting = options.pop("drafting", True) is not False
    chat.session.settings = adjust.put(chat.session.settings, options)
    chat.conversation, chat.drafting = saved.conversation, drafting
    say(f"taken up: {len(saved.conversation.turns)} questions, {saved.target}", quiet=True)
    for turn in saved.conversation.turns[-1:]:
        say(f"last question: {turn.question}", quiet=True)
    if saved.target != chat.session.settings.load.base:
        say(f"note: its answers are of {saved.target}; /model {saved.target} loads that", quiet=True)
    if saved.pending is not None:
        chat.default = saved.pending
        say(f"this question was not answered: {saved.pending}", quiet=True)


def _export(chat: Chat, name: str) -> None:
    if not name:
        raise UserError(
            "a file expected, found none: give /export FILE.md, FILE.json, FILE.html or FILE.jsonl (a recording)"
        )
    path = Path(name)
    export(chat.conversation, path)
    say(f"written: {path}", quiet=True)


def _stats(chat: Chat, _: str) -> None:
    if chat.metrics is None:
        raise UserError("an answer expected, found none yet: ask something first")
    chat.rows(stats.table(chat.metrics, chat.notes_theme))


def _tree(chat: Chat, mode: str) -> None:
    if mode in ("on", "off", "step"):
        chat.tree_mode = mode  # type: ignore[assignment]  # mypy does not narrow a str by `in`
        if mode == "step" and not (chat.typed and chat.draws):
            say("note: steps need a keyboard and a terminal that can be drawn on", quiet=True)
        say(f"draft tree: {mode}", quiet=True)
        return
    if mode:
        raise UserError(f"on, off or step expected, found {mode!r}: give /tree on")
    progress = Progress()
    for event in chat.conversation.last.events if chat.conversation.last else ():
        progress.take(event)
    if progress.started is not None and progress.started.policy == meters.SERVER:
        for line in meters.server_lines(progress.metrics, chat.notes_theme):
            say(line, quiet=True)
        return
    if progress.cycle is None:
        raise UserError("a recorded draft tree expected, found none: /tree on, then ask something")
    root = tree_view.judged(progress.cycle.drafted, progress.cycle.verified)
    theme, width = chat.notes_theme, chat.notes.width
    chat.rows([*tree_view.rows(root, width, 99, theme), tree_view.legend(theme, width)])


def _compare(chat: Chat, text: str) -> None:
    from eagle_chat.cli.chat import PLAIN

    base = chat.conversation
    if not text:
        text, base = _last(chat).question, base.before_last()
    if not chat.session.engine.describe().get("head"):
        raise UserError("a draft head here expected, found none: there is nothing to compare plain decoding with")
    tree = chat.session.settings.tree
    fast_tree = dataclasses.replace(tree, policy=None) if tree.policy == "none" else tree
    runs: list[Metrics] = []
    for title, config in (("1 of 2: plain decoding", PLAIN), ("2 of 2: speculative decoding", fast_tree)):
        if not chat.draws:
            say(title, quiet=True)
        runs.append(chat.stream(base.messages(text), lambda _event: None, config, title, compared=True))
        if runs[-1].finish_reason == "cancelled":
            break
    if chat.draws:
        same = len(runs) == 2 and same_text(runs[0], runs[1])[0]
        for metrics in runs[:1] if same else runs:
            chat.print_answer(metrics.text)
    if len(runs) == 2:
        chat.rows(compare.table(runs[0], runs[1], chat.notes_theme))
    else:
        say("stopped: nothing to compare", quiet=True)


def _draft(chat: Chat, mode: str) -> None:
    if mode not in ("on", "off", ""):
        raise UserError(f"on or off expected, found {mode!r}: give /draft on")
    if mode == "on" and not chat.session.engine.describe().get("head"):
        raise UserError("a draft head expected, found none: /model NAME or --draft gives one")
    if mode:
        chat.drafting = mode == "on"
    say(f"drafting: {'on' if chat.drafting else 'off'}", quiet=True)


def _model(chat: Chat, name: str) -> None:
    load = chat.session.settings.load
    if name:
        with chat.session.stop.released():  # loading is slow: Ctrl-C ends it
            try:
                chat.session.load(dataclasses.replace(load, base=name, draft=None, template=None, revision=None))
            except KeyboardInterrupt:
                say("stopped: the model stays", quiet=True)
    say(chat.session.about, quiet=True)


COMMANDS: dict[str, Command] = {
    "/help": Command("", "show these commands", _help),
    "/system": Command("[TEXT|default]", "show or change the system message", _system, ("default",)),
    "/set": Command("[k=v ...]", "show or change options, as /set temperature=0.7 seed=3", _set),
    "/regen": Command("", "answer the last question again, above temperature 0 with another seed", _regen),
    "/undo": Command("", "take back the last question and its answer", _undo),
    "/edit": Command("[TEXT]", "change the last question and ask it again", _edit),
    "/continue": Command("", "go on with an answer that was cut short", _continue),
    "/clear": Command("", "forget the conversation so far", _clear),
    "/save": Command("NAME|FILE", "save the conversation with everything", _save),
    "/load": Command("[NAME|FILE|last]", "take up a saved conversation; alone: list them", _load, ("last", "previous")),
    "/export": Command("FILE", "write FILE.md, FILE.json, FILE.html, a page, or FILE.jsonl, a recording", _export),
    "/stats": Command("", "the figures of the last answer in full", _stats),
    "/tree": Command(
        "[on|off|step]", "draft tree: show, hide, walk; alone: the last one", _tree, ("on", "off", "step")
    ),
    "/compare": Command("[TEXT]", "plain against speculative: speed, and whether the text is the same", _compare),
    "/draft": Command("[on|off]", "speculative or plain decoding", _draft, ("on", "off")),
    "/model": Command("[NAME]", "show the model, or load another", _model),
    "/quit": Command("", "leave (so does Ctrl-D)", lambda _chat, _text: None),
}
