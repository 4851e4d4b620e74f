from __future__ import annotations

from eagle_chat.serving.counters import Counters, parse

PAGE = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {0}.0
vllm:spec_decode_num_drafts_total{{engine="1",model_name="m"}} 1.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {1}.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {2}.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {3}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {4}.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {5}.0
"""


def page(drafts: int, drafted: int, accepted: int, first: int, second: int, generated: int) -> str:
    return PAGE.format(drafts, drafted, accepted, first, second, generated)


def test_counters_are_read_summed_over_engines_and_subtracted() -> None:
    before, after = parse(page(10, 20, 9, 6, 3, 100)), parse(page(30, 60, 24, 15, 9, 150))
    assert before == Counters(11, 20, 9, {0: 6, 1: 3}, 100)
    assert after is not None
    assert after.since(before) == Counters(20, 40, 15, {0: 9, 1: 6}, 50)
    assert after.since(Counters()) == after


def test_pages_without_drafts_or_of_another_kind_have_no_counters() -> None:
    assert parse("# TYPE other counter\nother_total 3.0\n") is None
    assert parse("<html>no page</html>") is None
    assert parse("") is None
