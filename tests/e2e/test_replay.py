"""A real run, exported over HTTP and replayed: the rounds come out again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server_ext.replay import main
from tests.e2e.loads import Load, loads
from tests.e2e.served import KEY, Served, fresh_salt

pytestmark = pytest.mark.server


def score(server: Served, load: Load) -> None:
    server.group(
        load.document,
        load.branches,
        question=load.text_question,
        scoring="likelihood",
        cache_salt=fresh_salt(),
    )


@pytest.mark.parametrize("policy", ["radix", "radixflow+"])
def test_a_run_is_replayed_from_its_own_export(
    server: Served,
    policy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setenv("RADIXFLOW_API_KEY", KEY)
    path = tmp_path / "run.jsonl"
    with server.policy(policy):
        before = server.counters()["rounds"]
        with ThreadPoolExecutor(8) as senders:
            list(senders.map(lambda load: score(server, load), [*loads(3), *loads(4)]))
        export = ["export", server.url, "--out", str(path), "--after", str(before)]
        assert main(export) == 0
    capsys.readouterr()
    assert main(["served", str(path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["replayed"]["tokens"] == result["served"]["tokens"]
    assert abs(result["rounds_off"]) <= 0.02
    assert result["served"]["rounds"] > 3
