"""A server's run, exported and replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server_ext.policy.arrivals import KEPT, KEY, Arrival, Arrivals, packed
from server_ext.policy.config import POLICIES
from server_ext.replay import main
from server_ext.replay.cards import CARDS
from server_ext.replay.policies import ARMS
from server_ext.replay.run import Engine
from server_ext.replay.served import (
    RecordingError,
    compare,
    read_recording,
    recording_from,
    replay_recording,
    write_recording,
)
from server_ext.replay.trace import Arrivals as Timing
from server_ext.replay.trace import Trace, arrive, paper_groups

CARD = replace(CARDS["Qwen3.5-9B"], rows=8, token_budget=2048)
NATIVE = Path(__file__).with_name("served_radix.jsonl")
"""A real CPU server with the bundled hybrid, as vLLM 0.32.0 schedules: 60 groups of
four in six seconds."""
RECORDED = {"radix": (NATIVE, 270)}
"""Runs of a real server by policy, and their requests."""


def answers_of(
    arm: str, *, asynchronous: bool = False
) -> tuple[dict[str, Any], list[Any]]:
    """What the routes of a server would say after a run in virtual time."""
    groups = paper_groups(regime="mixed", questions=10, seed=3)
    trace = Trace("t", arrive(groups, Timing("poisson", rate=6.0)))
    engine = Engine(trace, CARD, ARMS[arm], cost=CARD.cost, asynchronous=asynchronous)
    engine.run()
    scheduler = engine.scheduler
    arrivals, rounds = scheduler.arrivals_after(0), scheduler.rounds_after(0)["rounds"]
    while arrivals["next"] < arrivals["end"]:
        page = scheduler.arrivals_after(0, arrivals["next"])
        arrivals = {**page, "arrivals": arrivals["arrivals"] + page["arrivals"]}
    while more := scheduler.rounds_after(rounds[-1]["number"])["rounds"]:
        rounds += more
    # JSON, as it comes over HTTP
    arrivals, rounds = json.loads(json.dumps([arrivals, rounds]))
    return arrivals, rounds


@pytest.fixture(scope="module")
def answers() -> tuple[dict[str, Any], list[Any]]:
    return answers_of("radixflow+")


@pytest.mark.parametrize("arm", ["radix-0.32", "radix-0.33", "radixflow+", "radixflow"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_comes_out_again_round_by_round(arm: str, asynchronous: bool) -> None:
    recording = recording_from(*answers_of(arm, asynchronous=asynchronous))
    result = compare(recording.rounds, replay_recording(recording))
    assert result["first_difference"] is None
    assert result["served"] == result["replayed"]
    assert result["rounds_off"] == 0
    assert result["served"]["rounds"] >= 20


def test_another_policy_makes_other_rounds_of_the_same_arrivals() -> None:
    recording = recording_from(*answers_of("traversal"))
    native = replay_recording(recording, policy=POLICIES["radix"])
    result = compare(recording.rounds, native)
    assert result["replayed"]["rounds"] > result["served"]["rounds"]
    assert result["first_difference"] is not None


def test_a_file_comes_back_and_holds_no_keys(answers, tmp_path: Path) -> None:
    recording = recording_from(*answers)
    path = tmp_path / "run.jsonl"
    write_recording(recording, path)
    assert read_recording(path) == recording
    assert answers[0]["arrivals"][0]["keys"][:16] not in path.read_text()


def test_a_run_that_the_server_no_longer_has_is_refused(answers) -> None:
    arrivals, rounds = answers
    with pytest.raises(RecordingError, match="keeps rounds 3 to"):
        recording_from(arrivals, rounds[2:])
    with pytest.raises(RecordingError, match="no round after round 9999"):
        recording_from(arrivals, rounds, after=9999)
    late = {**arrivals, "arrivals": arrivals["arrivals"][1:]}
    with pytest.raises(RecordingError, match="does not give"):
        recording_from(late, rounds)


def test_a_request_that_generates_more_is_refused(answers) -> None:
    arrivals, rounds = answers
    chat = [{**entry, "generates": 40} for entry in arrivals["arrivals"]]
    with pytest.raises(RecordingError, match="generates up to 40 tokens"):
        recording_from({**arrivals, "arrivals": chat}, rounds)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: ["{}", *lines[1:]], "line 1: no recording of version 1"),
        (lambda lines: lines[:-1], "lines there"),
        (lambda lines: [lines[0], "{", *lines[2:]], "line 2"),
        (lambda lines: [*lines[:2], lines[1], *lines[3:]], "line 3.*a second request"),
        (
            lambda lines: [lines[0], lines[1].replace('"tokens":', '"t":'), *lines[2:]],
            "line 2",
        ),
        (
            lambda lines: [
                lines[0],
                lines[1].replace('"shared":0', '"shared":5'),
                *lines[2:],
            ],
            "line 2.*units shared",
        ),
        (lambda lines: [], "line 1: Expecting value"),
    ],
)
def test_a_broken_file_is_refused_by_line(answers, tmp_path, change, problem) -> None:
    path = tmp_path / "run.jsonl"
    write_recording(recording_from(*answers), path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(change(lines)) + "\n" if change(lines) else "")
    with pytest.raises(RecordingError, match=problem):
        read_recording(path)


# --- a real run -----------------------------------------------------------------------


@pytest.mark.parametrize("policy", RECORDED)
def test_a_real_servers_run_is_predicted_round_by_round(policy: str) -> None:
    path, requests = RECORDED[policy]
    real = read_recording(path)
    result = compare(real.rounds, replay_recording(real))
    assert real.policy.name == policy
    assert len(real.requests) == requests
    assert result["replayed"] == result["served"]
    assert result["first_difference"] is None


def test_the_command_says_that_it_was_predicted(capsys: Any) -> None:
    assert main(["served", str(NATIVE)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["first_difference"] is None


def test_the_command_fails_where_it_was_not(tmp_path: Path, capsys: Any) -> None:
    recording = recording_from(*answers_of("traversal"))
    other = replace(recording, policy=POLICIES["radix"])
    path = tmp_path / "other.jsonl"
    write_recording(other, path)
    assert main(["served", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["rounds_off"] > 0.02


def test_an_address_must_be_a_servers(tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "x.jsonl")
    assert main(["export", "file:///etc/hostname", "--out", out]) == 2
    assert "http://" in capsys.readouterr().err
    assert main(["export", "http://127.0.0.1:9", "--out", out]) == 2
    assert "is the server up?" in capsys.readouterr().err


# --- what a server keeps --------------------------------------------------------------


def arrival(number: int, keys: bytes = b"") -> Arrival:
    return Arrival(f"r{number}", number, 0.0, 8, 1, True, keys, None)


def test_a_server_keeps_the_last_arrivals_and_counts_the_others() -> None:
    kept = Arrivals()
    for number in range(KEPT + 3):
        kept.add(arrival(number))
    assert (len(list(kept)), kept.dropped) == (KEPT, 3)
    assert next(iter(kept)).name == "r3"


def test_long_prompts_are_bounded_by_their_keys() -> None:
    kept = Arrivals()
    for number in range(40):
        kept.add(arrival(number, packed([bytes(32)] * (1 << 17))))
    assert len(list(kept)) == (1 << 24) // (KEY << 17)
    assert kept.dropped == 40 - len(list(kept))
