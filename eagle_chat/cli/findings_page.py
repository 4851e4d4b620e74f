"""Findings as a person reads them: by group, each with a sign, its cause and its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from eagle_chat.cli.theme import Theme
from eagle_chat.doctor.findings import Finding, Severity, worst

NAME = 18
"""Columns for the name of a check."""
NARROW = 60
"""Columns below which the text stands under the name."""
WIDEST = 110
"""Lines longer than this are hard to read."""
SIGNS: dict[Severity, tuple[str, str, str]] = {
    "ok": ("✓", "+", "accepted"),
    "note": ("·", ".", "quiet"),
    "warning": ("!", "!", "warning"),
    "error": ("✗", "x", "rejected"),
}
"""Sign, sign in ASCII, style."""


class Page:
    """Prints findings by group."""

    def __init__(self, console: Console, theme: Theme, quiet: bool = False) -> None:
        self._console, self._theme, self._quiet = console, theme, quiet
        self._group = ""
        self._width = min(console.width if console.is_terminal else WIDEST, WIDEST)

    def title(self, text: str) -> None:
        """The first line."""
        for line in self._wrapped(text, 0, "title"):
            self._print(line)

    def show(self, findings: Iterable[Finding]) -> None:
        """Findings under the heading of their group."""
        for finding in findings:
            if finding.group != self._group:
                self._group = finding.group
                self._print(Text())
                self._print(self._theme.text(finding.group.capitalize(), "figure"))
            for row in self.rows(finding):
                self._print(row)

    def rows(self, finding: Finding) -> list[Text]:
        """One finding: sign, name and text; below it cause and remedy."""
        sign, plain, style = SIGNS[finding.severity]
        # A text's own style is that of all that is appended to it, so every row begins with one that has none.
        head = Text().append_text(self._theme.text(f"  {plain if self._theme.ascii else sign} ", style))
        head.append_text(self._theme.text(finding.check.ljust(NAME), style if finding.severity == "error" else ""))
        indent = len(head) if self._width >= NARROW else 6
        found = finding.found.replace("τ", self._theme.signs.tau)
        body = self._wrapped(found, indent)
        if self._width >= NARROW:
            rows = [head.append_text(body[0]), *self._indented(body[1:], indent)]
        else:
            rows = [head, *self._indented(body, indent)]
        for label, text, loud in (("cause", finding.cause, ""), ("remedy", finding.remedy, "figure")):
            if text:
                lines = self._wrapped(text, indent + 8, loud)
                first = Text().append_text(self._theme.text(" " * indent + label.ljust(8), "quiet"))
                rows += [first.append_text(lines[0]), *self._indented(lines[1:], indent + 8)]
        return rows

    def _wrapped(self, text: str, indent: int, style: str = "") -> list[Text]:
        width = max(self._width - indent - 1, 16)
        return list(self._theme.text(text, style).wrap(self._console, width, no_wrap=False)) or [Text()]

    @staticmethod
    def _indented(lines: Sequence[Text], indent: int) -> list[Text]:
        return [Text(" " * indent).append_text(line) for line in lines]

    def verdict(self, findings: Sequence[Finding], ran: bool) -> None:
        """The last line."""
        counts = {name: sum(one.severity == name for one in findings) for name in ("error", "warning", "note")}
        parts = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
        words = ", ".join(parts) or ("all is well" if ran else "all is well as far as can be seen without a run")
        grave = worst(findings)
        self._print(Text())
        if grave == "error" and ran:
            words += "; later checks wait for the errors to be remedied"
        for line in self._wrapped(words, 0, SIGNS[grave][2]):
            self._print(line)

    def _print(self, row: Text) -> None:
        if not self._quiet:
            row.end = "\n"
            row.rstrip()
            self._console.print(row, soft_wrap=True)
