"""Costs fitted to made-up round logs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from server_ext.policy.config import policy_from_config
from server_ext.replay import main
from server_ext.replay.calibrate import CalibrationError, calibrate, samples

ROUND, TOKEN, ROW = 0.016, 50e-6, 0.004
"""A row is worth 80 tokens here, and a round 320."""


def log(
    count: int = 300,
    *,
    noise: float = 0.0,
    idle: float = 0.0,
    asynchronous: bool = False,
    alike: bool = False,
    seed: int = 1,
) -> list[dict[str, Any]]:
    """Rounds of known costs.

    Args:
        count: rounds.
        noise: relative spread of a round's duration.
        idle: share of rounds after which the server has nothing to do for a second.
        asynchronous: plan a round while the last one runs.
        alike: all rounds have the same rows and tokens.
        seed: of all that is drawn.
    """
    source = random.Random(seed)
    rounds, at, behind = [], 1000.0, 0.0
    for number in range(1, count + 1):
        rows = 4 if alike else source.randint(1, 16)
        longest = source.choice((20, 100, 800))
        tokens = [100 if alike else source.randint(4, longest) for _ in range(rows)]
        gap = source.random() < idle
        lasts = (ROUND + TOKEN * sum(tokens) + ROW * rows) * source.gauss(1, noise)
        rounds.append(
            {
                "number": number,
                "at": at,
                "waiting": 0 if gap else 3,
                "held": 0,
                "scheduled": {f"{number}.{i}": n for i, n in enumerate(tokens)},
            }
        )
        at += (behind if asynchronous else lasts) + gap
        behind = lasts
    return rounds


def test_known_costs_are_found() -> None:
    found = calibrate(samples(log()))
    assert found.cost.round == pytest.approx(ROUND, rel=1e-6)
    assert found.cost.token == pytest.approx(TOKEN, rel=1e-6)
    assert found.cost.row == pytest.approx(ROW, rel=1e-6)
    assert (found.row.tokens, found.round.tokens) == (80, 320)
    assert (found.row.low, found.row.high) == (80, 80)
    assert found.used == 299


def test_noise_widens_the_spread_and_leaves_the_costs_in_it() -> None:
    quiet, noisy = (calibrate(samples(log(noise=n))) for n in (0.01, 0.1))
    for found in (quiet, noisy):
        assert found.row.low <= found.row.tokens <= found.row.high
        assert found.round.low <= found.round.tokens <= found.round.high
        assert found.row.tokens == pytest.approx(80, rel=0.25)
        assert found.round.tokens == pytest.approx(320, rel=0.25)
    assert noisy.round.high - noisy.round.low > quiet.round.high - quiet.round.low


def test_idle_gaps_are_not_rounds() -> None:
    found = calibrate(samples(log(idle=0.3)))
    assert (found.row.tokens, found.round.tokens) == (80, 320)
    assert found.used < 240


def test_a_held_branch_is_no_work() -> None:
    rounds = [{**entry, "held": 3} for entry in log()]
    assert samples(rounds) == []


def test_a_request_that_goes_on_keeps_the_server_busy() -> None:
    rounds = [{**entry, "waiting": 0} for entry in log(50)]
    assert samples(rounds) == []
    for entry in rounds:
        entry["scheduled"]["long"] = 10
    assert len(samples(rounds)) == 49


def test_a_missing_round_gives_no_duration() -> None:
    rounds = log(50)
    assert len(samples(rounds[:20] + rounds[21:])) == 47


def test_rounds_that_something_else_held_up_are_left_out() -> None:
    rounds = log(noise=0.01)
    late = 0.0
    for number, entry in enumerate(rounds):
        entry["at"] += late
        late += 5.0 if number % 50 == 10 else 0.0
    found = calibrate(samples(rounds))
    assert found.round.tokens == pytest.approx(320, rel=0.1)
    assert found.used <= 293


def test_the_asynchronous_engine_shows_a_rounds_cost_one_round_later() -> None:
    rounds = log(asynchronous=True)
    found = calibrate(samples(rounds, asynchronous=True))
    assert (found.row.tokens, found.round.tokens) == (80, 320)
    with pytest.raises(CalibrationError, match="does not grow with their tokens"):
        calibrate(samples(rounds))  # each duration beside the round after


@pytest.mark.parametrize(
    ("rounds", "problem"),
    [
        (log(30), "29 rounds that the next one followed"),
        (log(200, idle=1.0), "0 rounds that the next one followed"),
        (log(100, alike=True), "too much alike"),
        ([], "0 rounds"),
    ],
    ids=["few", "idle", "alike", "empty"],
)
def test_a_log_that_does_not_tell_is_refused(rounds, problem) -> None:
    with pytest.raises(CalibrationError, match=problem):
        calibrate(samples(rounds))


def test_time_that_does_not_grow_with_tokens_is_refused() -> None:
    rounds = log(100)
    for number, entry in enumerate(rounds):
        entry["at"] = number * 0.01
    with pytest.raises(CalibrationError, match="does not grow with their tokens"):
        calibrate(samples(rounds))


@pytest.mark.parametrize("change", [{"at": None}, {"scheduled": 5}, {"number": ...}])
def test_what_is_no_round_log_is_refused(change: dict[str, Any]) -> None:
    rounds: list[dict[str, Any]] = [{**entry, **change} for entry in log(3)]
    for entry in rounds:
        if entry["number"] is ...:
            del entry["number"]
    with pytest.raises(CalibrationError, match="not a round log"):
        samples(rounds)


def test_the_command_prints_settings_that_the_server_takes(
    tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "rounds.json"
    path.write_text(json.dumps({"v": 1, "rounds": log()}))
    assert main(["calibrate", str(path)]) == 0
    *lines, option = capsys.readouterr().out.splitlines()
    assert "299 of 300 rounds" in lines[0]
    assert "row_tokens 80 (80 to 80)" in lines
    assert "round_tokens 320 (320 to 320)" in lines
    name, _, value = option.partition(" ")
    assert name == "--additional-config"
    policy = policy_from_config(json.loads(value.strip("'")), {})
    assert (policy.row_tokens, policy.round_tokens) == (80, 320)


def test_the_command_reads_a_log_of_the_asynchronous_engine(
    tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "rounds.json"
    path.write_text(json.dumps(log(asynchronous=True)))
    assert main(["calibrate", "--async", str(path)]) == 0
    assert "row_tokens 80 (80 to 80)" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{}", "5", "[", '{"rounds": null}'])
def test_the_command_refuses_other_files(
    text: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "rounds.json"
    path.write_text(text)
    assert main(["calibrate", str(path)]) == 2
    assert capsys.readouterr().err.startswith("radixflow replay: ")
