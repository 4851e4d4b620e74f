"""What quantisation does to the speed, where the target is quantised."""

from __future__ import annotations

from collections.abc import Iterator

from eagle_chat.bench.quantised import Load, compare, quantisation_line
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.progress import Report
from eagle_chat.core.quantization import wanted
from eagle_chat.doctor.findings import Finding, ok

GROUP = "run"


def check_quantised(engine: Engine, config: LoadConfig, load: Load, report: Report) -> Iterator[Finding]:
    """Quantised against unquantised, measured in turn."""
    if not wanted(config):
        return
    report("loading the unquantised target, to compare with", 0.9)
    result = compare(engine, config, engine.defaults.total_tokens or 1, load)
    line = quantisation_line(result)
    if all(row["speedup"] >= 1.0 for row in result["rows"]):
        yield ok(GROUP, "quantised", line, **result)
        return
    cause = (
        "bitsandbytes turns the weights back into floats for every product; here that takes longer than reading them"
    )
    remedy = "leave it out, unless the memory is too small without"
    yield Finding(GROUP, "quantised", "warning", line, cause, remedy, result)
