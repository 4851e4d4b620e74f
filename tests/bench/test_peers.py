"""Other engines in the rounds: a scripted one that speaks the protocol, and transformers itself."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eagle_chat.bench.card import bench_card
from eagle_chat.bench.peers import catalog, places, setup
from eagle_chat.bench.peers.catalog import Skipped, find_peers
from eagle_chat.bench.peers.compare import open_guests, own_readings, peer_figures
from eagle_chat.bench.peers.worker import Peer, PeerError, Reading, Worker
from eagle_chat.bench.runner import Asker, Measured, Stopped, measure
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import UserError
from tests.bench.parts import QUESTIONS, ScriptedEngine, candidate, cycle, scripted, speaker, tiny_engine
from tests.tiny import answer, make_engine, make_model, make_target


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_chat.bench.peers.worker.REST_SECONDS", 0.0)


def test_a_worker_answers_and_ends() -> None:
    with Worker(speaker()) as worker:
        assert worker.wait_ready() == {"speaker": "1.0"}
        assert worker.ask([4, 5, 6], 2, [0]) == Reading([4, 5], 1, 0.5, 1.5, 2)
    assert worker._process.returncode == 0


def test_what_a_worker_that_died_said_is_the_reason() -> None:
    with Worker(speaker(life=0)) as worker:
        worker.wait_ready()
        with pytest.raises(PeerError, match="code 5: ValueError: tired"):
            worker.ask([4], 2, [])
    with pytest.raises(PeerError, match="could not be started"):
        Worker(Peer("none", "", ("/no/such/program",), {}))
    broken = Peer("broken", "", (sys.executable, "-c", "import no_such_module_anywhere"), {})
    why = "ModuleNotFoundError: No module named 'no_such_module_anywhere'"
    with Worker(broken) as worker, pytest.raises(PeerError, match=why):
        worker.wait_ready()


def test_a_person_need_not_wait() -> None:
    deaf = Peer("deaf", "", (sys.executable, "-c", "import time; time.sleep(60)"), {})
    with Worker(deaf, lambda: True) as worker, pytest.raises(Stopped):
        worker.wait_ready()
    assert worker._process.returncode not in (None, 0)


def rounds(*peers: Peer | Skipped, stop: Any = lambda: False) -> tuple[Measured, Any, Any, ScriptedEngine]:
    engine = ScriptedEngine()
    with open_guests(peers, lambda question: [7, 8, 9], 12, [0], stop, lambda *_: None) as (guests, skipped):
        asker: Any = Asker(engine, stop=stop)  # type: ignore[arg-type]
        measured = measure([asker], [candidate("plain"), candidate()], QUESTIONS[1:], guests=guests)
    return measured, guests, skipped, engine


def test_peers_answer_in_the_same_rounds_and_a_failing_one_is_out() -> None:
    missing = Skipped("gone", "not installed")
    dies = speaker(life=3, name="short-lived")  # twice to warm up, one question
    measured, guests, skipped, _ = rounds(speaker(), dies, missing, speaker(life=1, name="never warm"))
    assert [list(guest.readings) for guest in guests] == [[2, "x3"], [2], []]
    value = peer_figures(measured, ["plain", "dynamic 8"], guests, skipped, 0)
    assert [one["name"] for one in value["engines"]] == ["eagle-chat plain", "eagle-chat dynamic 8", "speaker"]
    assert [one["name"] for one in value["skipped"]] == ["gone", "short-lived", "never warm"]
    assert "tired" in value["skipped"][1]["reason"]
    json.dumps(value, allow_nan=False)


def test_figures_are_those_computed_by_hand() -> None:
    step = (0.0, 0.5, 0.0, 0.0, 0.0)
    ours = [scripted(question, cycle(1, [2, 3], step), cycle(2, [4], step)) for question in QUESTIONS[1:]]
    # Prefill .5 s of 2 s: three tokens in 1.5 s.
    assert own_readings(ours)[2] == Reading([1, 2, 3, 4], 1, 0.5, 2.0, 3)
    measured = Measured([candidate("plain")], [ours], QUESTIONS[1:], False, [])
    guest = type("Guest", (), {})()
    guest.worker = type("Held", (), {"peer": Peer("other", "Q4", (), {})})()
    guest.versions, guest.failed = {"other": "2"}, None
    guest.readings = {2: Reading([1, 2, 3, 4], 2, 0.5, 1.0, 2), "x3": Reading([1, 9], 1, 1.0, 2.0, None)}
    value = peer_figures(measured, ["plain"], [guest], [], 0)
    own, other = value["engines"]
    assert (own["tokens_per_second"], own["tau"], own["speedup"]) == (pytest.approx(2.0), pytest.approx(1.5), 1.0)
    assert other["tokens_per_second"] == pytest.approx(3 / 1.5)  # 2 in half a second, 1 in one
    assert other["end_to_end"] == pytest.approx(6 / 3.0)
    assert other["speedup"] == pytest.approx((4 / 2 + 1 / 2) / 2)
    assert other["speedup_interval"] is None  # of two questions
    assert (other["tau"], other["first_seconds"]) == (None, 0.75)
    assert other["same_text"] == {"equal": 1, "of": 2}
    assert (value["best"]["ours"], value["best"]["theirs"]) == ("eagle-chat plain", "other")
    assert value["best"]["speedup"] == pytest.approx((2 / 4 + 2 / 1) / 2)
    runs: dict[str, Any] = {"runs": [], "partial": False, "notes": [], "target": "t", "head": "h", "heads": ["h"]}
    machine = {"cpu": "C", "device": "cpu", "device_name": None, "dtype": "float32", "threads": 2}
    questions = {"source": "builtin", "asked": 2, "answered": 2, "max_new_tokens": 12}
    out = io.StringIO()
    value["skipped"].append({"name": "vLLM", "reason": "[red]not installed[/red]"})
    card = bench_card({**runs, "machine": machine, "questions": questions, "peers": value}, ascii_only=True)
    Console(file=out, width=110, markup=False, emoji=False, highlight=False).print(card)
    shown = out.getvalue()
    shown.encode("ascii")
    assert "skipped: vLLM: [red]not installed[/red]" in shown
    assert "eagle-chat plain: 1.25 times as fast as other\n" in shown.replace(" \n", "\n")


def test_what_is_not_set_up_is_skipped_with_the_command_that_sets_it_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EAGLE_CHAT_PEERS", str(tmp_path))
    found = find_peers(tiny_engine(), LoadConfig(base="./folder"), 100, lambda *_: None)
    skipped = {one.name: one.reason for one in found if isinstance(one, Skipped)}
    assert set(skipped) == {"vLLM", "llama.cpp"}
    assert str(tmp_path) in skipped["vLLM"]
    assert skipped["vLLM"].endswith("-m eagle_chat.bench.peers.setup vllm")
    assert skipped["llama.cpp"].endswith("-m eagle_chat.bench.peers.setup llama-cpp")
    assert [one.name for one in found if isinstance(one, Peer)] == ["transformers", "transformers, prompt lookup"]


def test_what_is_set_up_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EAGLE_CHAT_PEERS", str(tmp_path))
    monkeypatch.setattr(catalog.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(catalog, "find_head_folder", lambda config: Path("/heads") / str(config.draft))
    for path in (places.vllm_python(), places.node_package() / "package.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    engine, config = tiny_engine(), LoadConfig(base="m.Q4_1.gguf", draft="mine")
    peers = [one for one in find_peers(engine, config, 100, lambda *_: None) if isinstance(one, Peer)]
    assert [(peer.name, peer.format) for peer in peers[2:]] == [
        ("vLLM", "float32"),
        ("vLLM, eagle3 chain 3", "float32"),
        ("llama.cpp", "Q4_1"),
        ("llama.cpp, prompt lookup", "Q4_1"),
    ]
    settings = [json.loads(peer.command[-1]) for peer in peers]
    assert settings[3]["head"] == "/heads/mine"
    assert [one["lookup"] for one in settings if "lookup" in one] == [0, 3, 0, 3]
    assert {one["max_length"] for one in settings} == {100}


def test_transformers_gives_the_text_of_plain_decoding(tmp_path: Path) -> None:
    """The worker program itself, on a model in a folder."""
    make_model().save_pretrained(tmp_path)
    engine = make_engine(make_target())
    engine.target.model.config.name_or_path = str(tmp_path)
    prompt = engine.chat.encode([{"role": "user", "content": "one two one two"}])
    expected = answer(engine, prompt, sampling=candidate("plain", tokens=9).sampling)
    peer = catalog._python(
        "transformers",
        Path(sys.executable),
        {"engine": "transformers", "target": str(tmp_path), "dtype": "float32", "device": "cpu", "lookup": 3},
    )
    with Worker(peer) as worker:
        assert set(worker.wait_ready()) == {"transformers", "torch"}
        reading = worker.ask(prompt, 9, [])
    assert reading.token_ids == expected
    assert 1 <= (reading.steps or 0) <= 9
    assert 0.0 < reading.first_seconds <= reading.seconds


def test_setting_up_something_unknown_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["ollama"]) == 2
    assert capsys.readouterr().err.startswith("error: vllm or llama-cpp expected, found 'ollama'")


def test_the_environment_of_llama_cpp_gets_one_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EAGLE_CHAT_PEERS", str(tmp_path))
    monkeypatch.setattr(setup.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(setup.platform, "system", lambda: "Linux")
    monkeypatch.setattr(setup.platform, "machine", lambda: "x86_64")
    ran: list[list[str]] = []
    monkeypatch.setattr(setup, "_run", ran.append)
    assert setup.main(["llama-cpp"]) == 0
    ((npm, verb, *rest),) = ran
    assert (npm, verb) == ("/bin/npm", "install")
    assert {"--omit=optional", f"@node-llama-cpp/linux-x64@{setup.NODE_VERSION}"} <= set(rest)
    assert places.node_package().is_relative_to(Path(rest[rest.index("--prefix") + 1]))
    with pytest.raises(UserError, match="SunOS"):
        setup.node_platform("SunOS", "sparc")
