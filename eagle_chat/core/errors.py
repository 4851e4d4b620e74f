"""Errors a person can act on. Each message says what was expected, what was found, and what to do."""

from __future__ import annotations


class EagleChatError(Exception):
    """Something failed; the program ends with `exit_code`."""

    exit_code = 1


class UserError(EagleChatError):
    """The input was wrong: an option, a path, a name, a file."""

    exit_code = 2


class HeadMismatchError(EagleChatError):
    """The draft head does not fit the target."""

    exit_code = 3


def first_line(error: BaseException) -> str:
    """The first line of an error that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
