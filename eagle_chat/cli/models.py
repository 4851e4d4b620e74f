"""`eagle-chat models`: the names there are, their heads, and what of it is on this machine."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from eagle_chat.cli.text import needs_ascii, say
from eagle_chat.core import registry
from eagle_chat.core.errors import UserError
from eagle_chat.core.hub import ASSET, cached, cached_gigabytes, fetch_head, fetch_target
from eagle_chat.core.registry import Entry, Head

PULL = "pull"
LEGEND = (
    "official: a head of the EAGLE authors, only its figures compare with the papers'; community: by others; project: "
    "made here. here: what of it is on this machine. With one name: all that is known of it."
)


def run(words: Sequence[str], as_json: bool) -> int:
    """List the entries in which every word occurs, or fetch one; the exit code."""
    if words and words[0] == PULL:
        return pull(words[1:])
    found = select(words)
    if as_json:
        sys.stdout.write(json.dumps([as_value(entry) for entry in found], ensure_ascii=True) + "\n")
    elif len(found) == 1:
        sys.stdout.write("\n".join(details(found[0])) + "\n")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        sys.stdout.write("\n".join(table(found, needs_ascii(sys.stdout), width)) + "\n")
        say(LEGEND, quiet=True)
    return 0


def select(words: Sequence[str]) -> list[Entry]:
    """Entries that have every word in one of their texts; a main alias or a target's hub id means that one alone."""
    if len(words) == 1:
        for entry in registry.entries().values():
            if words[0].lower() in (entry.alias, entry.target.lower()):
                return [entry]
    found = [entry for entry in registry.entries().values() if all(word.lower() in _text(entry) for word in words)]
    if not found and len(words) == 1 and (one := registry.lookup(words[0])):  # or it says what is like it
        return [one]
    if not found:
        raise UserError(f"words of a model's name expected, found {' '.join(words)!r}: eagle-chat models lists all")
    return found


def _text(entry: Entry) -> str:
    heads = (f"{head.repo} {head.method} {_maker(head)}" for head in entry.heads)
    return " ".join((entry.alias, *entry.names, entry.target, entry.family, entry.about, *heads)).lower()


def as_value(entry: Entry) -> dict[str, Any]:
    """An entry with what of it is cached, as JSON takes it."""
    value = asdict(entry) | {"head": entry.head, "official": entry.official, "cached": cached(entry.target)}
    for head in value["heads"]:
        head["cached"] = cached(head["repo"])
    return value


def table(found: Sequence[Entry], ascii_only: bool, width: int) -> Iterator[str]:
    """A line for each head: alias, method, size, whose it is, what is here, its id."""
    rows = [("alias", "head", "size", "by", "here", "taken from")]
    for entry in found:
        for head in entry.heads:
            here = "+".join(name for name, repo in (("target", entry.target), ("head", head.repo)) if cached(repo))
            repo = head.repo.removeprefix(ASSET) + _elsewhere(head)
            rows.append((entry.alias, head.method, _size(head) or "-", _maker(head), here or "-", repo))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        line = "  ".join(cell.ljust(size) for cell, size in zip(row[:5], widths, strict=True)) + f"  {row[5]}"
        yield line if not width or len(line) <= width else f"{line[: width - 1]}{'>' if ascii_only else '…'}"


def details(entry: Entry) -> Iterator[str]:
    """All that is known of one entry, a line each."""
    yield f"{entry.alias}: {entry.about}"
    if entry.names:
        yield f"  also called  {', '.join(entry.names)}"
    yield f"  target       {entry.target} ({_here(entry.target)})"
    for head in entry.heads:
        facts = ", ".join(filter(None, (head.method, _maker(head), _size(head))))
        yield f"  head         {head.repo.removeprefix(ASSET)}{_elsewhere(head)} ({facts}; {_here(head.repo)})"
        if tree := head.tree_config():
            yield f"               depth {tree.depth}, top_k {tree.top_k}, {tree.total_tokens} nodes on an accelerator"
    yield f"  prompts      the tokenizer's own template ({entry.family})" + (
        f", or --template {entry.template} where it has none" if entry.template else ""
    )
    if entry.dtype:
        avoid = f", never {', '.join(entry.avoid)}: it overflows" if entry.avoid else ""
        yield f"  dtype        {entry.dtype} on an accelerator{avoid}; on a CPU the faster one is found by measuring"
    if ":" not in entry.target:
        yield f"  revision     {entry.revision}; --revision and --draft-revision pin a commit"
    if entry.remote_code:
        yield "  code         from its own repository: --trust-remote-code runs it"
    yield f"  try it       eagle-chat --base {entry.alias}"


def _size(head: Head) -> str:
    return "" if head.parameters is None else f"{head.parameters:.2f}B"


def _maker(head: Head) -> str:
    if head.repo.startswith(ASSET):
        return "project"
    return "official" if head.official else "community"


def _elsewhere(head: Head) -> str:
    return "" if head.host == "hub" else f" (on {head.host})"


def _here(repo: str) -> str:
    size = cached_gigabytes(repo)
    return f"here, {size:.2f} GB" if size else "here" if cached(repo) else "not fetched yet"


def pull(names: Sequence[str]) -> int:
    """Fetch the target and the first head of one alias; the exit code."""
    if len(names) != 1:
        raise UserError(f"one name expected after pull, found {len(names)}: eagle-chat models pull llama-3.1-8b")
    entry = registry.lookup(names[0])
    if entry is None:
        raise UserError(f"an alias expected, found {names[0]!r}: eagle-chat models lists them")
    say(f"fetching {entry.target} ...", quiet=True)
    fetch_target(entry.target, entry.revision)
    for head in entry.heads[:1]:
        say(f"fetching {head.repo} ...", quiet=True)
        fetch_head(head.repo, head.revision)
    say(f"{entry.alias} is here: eagle-chat --base {entry.alias}", quiet=True)
    return 0
