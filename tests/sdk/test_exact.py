"""``radixflow doctor --exact`` on made-up servers: right, wrong, and not ours."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from radixflow_sdk import cli
from radixflow_sdk._doctor import check_stats
from radixflow_sdk._exact import cases, check_hits, lengths
from radixflow_sdk.testing import FakeServer, Fault

SETTINGS = {"match_unit": 16, "block_size": 128, "max_model_len": 4096}


def doctor(server: FakeServer) -> Any:
    with server.listen_in_thread() as url:
        return CliRunner().invoke(cli.app, ["doctor", url, "--exact"])


def test_a_right_server() -> None:
    done = doctor(FakeServer())
    assert done.exit_code == 0, done.output
    assert "scores move by at most 0.0000 nat, so that 0.20 is wrong" in done.output
    for phase in ("in a group", "again", "all groups at once"):
        assert f"{phase}: " in done.output
    assert "BAD" not in done.output


def test_a_server_whose_cached_scores_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every number is right until groups find their documents in the cache."""
    from radixflow_sdk.testing import _server

    real = _server.Scores.of

    def wrong(self: Any, content: Any, **more: Any) -> Any:
        score = real(self, content, **more)
        asked.append(content)
        return score - 0.4 if len(asked) > 350 else score

    asked: list[Any] = []
    monkeypatch.setattr(_server.Scores, "of", wrong)
    done = doctor(FakeServer())
    assert done.exit_code == 1
    assert "in a group: " in done.output
    assert "BAD  wrong by 0.400 nat: option " in done.output
    assert done.output.count("BAD") == 1


def test_a_server_with_another_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {**FakeServer()._stats(), "settings": None}
    monkeypatch.setattr(FakeServer, "_stats", lambda self: stats)
    done = doctor(FakeServer())
    assert done.exit_code == 1
    assert "compared on RadixFlow's scheduler only" in done.output


def test_a_server_that_fails_on_the_way() -> None:
    faults = [None] * 30 + [Fault(status=500)] * 400
    done = doctor(FakeServer(faults=faults))
    assert done.exit_code == 1
    assert "does not answer all that a comparison" in done.output


def test_lengths_lie_around_the_borders() -> None:
    found = lengths(128, 16, 4000)
    assert {15, 16, 17, 127, 128, 129, 144, 383} <= {*found}
    assert lengths(128, 128, 4000)[:3] == [127, 128, 129]
    assert lengths(528, 16, 300) == [15, 16, 17]


def test_cases_of_a_family_begin_alike() -> None:
    made = cases(range(100, 180), SETTINGS)
    assert len(made) == 4 * len(lengths(128, 16, 4000))
    assert len({case.name for case in made}) == len(made)
    for case in made:
        longest = max(map(len, case.options))
        assert len(case.document) + longest < SETTINGS["max_model_len"]
        first = next(one for one in made if one.family == case.family)
        assert case.document[: len(first.document)] == first.document
        assert len(set(case.options)) == len(case.options)


def test_hits_that_fall_short_are_noted() -> None:
    made = cases(range(100, 180), SETTINGS)
    full = {case.name: (len(case.document) - 1) // 16 * 16 for case in made}
    assert check_hits(full, made, SETTINGS).level == "ok"
    short = check_hits({**full, made[-2].name: 0}, made, SETTINGS)
    assert short.level == "note"
    assert made[-2].name in short.change


def test_the_engine_is_described() -> None:
    stats = FakeServer()._stats()
    engine = {
        "model_runner": "V2",
        "kv_cache_layout": "LBNHC",
        "workers": [["block_copy"], ["block_copy"]],
    }
    found = [finding.what for finding in check_stats({**stats, "engine": engine})]
    assert "model runner V2, cache layout LBNHC, asynchronous scheduling" in found
    assert "2 workers hold the patches block_copy" in found
