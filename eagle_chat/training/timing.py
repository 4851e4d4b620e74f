"""Times for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 12 min, 3 h 20 min; "unknown" for infinity."""
    if seconds == float("inf"):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
