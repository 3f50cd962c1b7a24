"""`radixflow doctor`, run against servers that are well and servers that are not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixflow_sdk import cli
from radixflow_sdk._doctor import check_results, check_stats
from radixflow_sdk._results import ScoreResult
from radixflow_sdk.sync import RadixFlow
from radixflow_sdk.testing import FakeServer, Fault

RUN = CliRunner()
STATS = FakeServer()._stats()
SETTINGS = STATS["settings"]


def doctor(server: FakeServer, *rest: str) -> Any:
    with server.listen_in_thread() as url:
        return RUN.invoke(cli.app, ["doctor", url, *rest])


def test_a_healthy_server() -> None:
    done = doctor(FakeServer())
    assert done.exit_code == 0, done.output
    for words in ("serves fake", "RadixFlowScheduler", "multiples of 16", "896 of the"):
        assert words in done.output
    assert "->" not in done.output


def test_nobody_there() -> None:
    done = RUN.invoke(cli.app, ["doctor", "http://127.0.0.1:9"])
    assert done.exit_code == 1
    assert " BAD  does not answer as a vLLM server\n" in done.output
    assert "check that the server runs" in done.output
    assert RUN.invoke(cli.app, ["doctor", "nowhere"]).exit_code == 2


def test_the_url_stands_alone_or_behind_a_flag() -> None:
    with FakeServer().listen_in_thread() as url:
        assert RUN.invoke(cli.app, ["doctor", "--base-url", url]).exit_code == 0
        both = RUN.invoke(cli.app, ["doctor", url, "--base-url", "http://other"])
    assert both.exit_code == 2
    assert f"URL is {url!r} and again 'http://other'; give one" in both.stderr


def test_a_limit_is_named_as_the_command_line_does() -> None:
    done = doctor(FakeServer(delay=5), "--timeout", "0.3")
    assert done.exit_code == 1
    assert "does not score a new document" in done.output
    assert "raise --timeout or send less" in done.output


def test_a_stock_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stock(self: FakeServer, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/v1/models":
            scope = {**scope, "path": "/not/there"}
        await real(self, scope, receive, send)

    real = FakeServer.__call__
    monkeypatch.setattr(FakeServer, "__call__", stock)
    done = doctor(FakeServer())
    assert done.exit_code == 1
    assert "`radixflow serve MODEL`" in done.output


def test_no_reuse_is_said_loudly() -> None:
    done = doctor(FakeServer(settings={"prefix_caching": False}))
    assert done.exit_code == 1
    assert " BAD  0 of the repeated document's" in done.output
    assert "(0%)\n" in done.output
    assert "--enable-prefix-caching" in done.output


def test_a_document_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "document.txt"
    path.write_text("Three short words.")
    done = doctor(FakeServer(), "--document", str(path))
    assert done.exit_code == 0
    assert "WARN  the document has 3 tokens" in done.output
    assert "more than 16 tokens" in done.output
    assert "ok  0 of the repeated document's 3 tokens" in done.output
    path.write_text("word " * 17)
    longer = doctor(FakeServer(), "--document", str(path))
    assert "WARN" not in longer.output
    assert "16 of the repeated document's 17 tokens were reused" in longer.output


def test_a_document_that_is_not_there_or_empty(tmp_path: Path) -> None:
    path = tmp_path / "document.txt"
    missing = RUN.invoke(cli.app, ["doctor", "--document", str(path)])
    assert missing.exit_code == 2
    assert "--document is" in missing.stderr
    path.write_text("\n")
    empty = RUN.invoke(cli.app, ["doctor", "--document", str(path)])
    assert empty.exit_code == 2
    assert "which is empty" in empty.stderr


def test_a_server_that_does_not_tell_what_it_reuses(result: ScoreResult) -> None:
    other = replace(result, route="trie")
    assert levels(other, other) == ["note", "ok"]


def test_another_scheduler_and_cache_mode() -> None:
    other = check_stats({**STATS, "scheduler": "AsyncScheduler", "settings": None})
    assert [finding.level for finding in other] == ["ok", "bad"]
    settings = {**SETTINGS, "mamba_cache_mode": "none"}
    mode = check_stats({**STATS, "settings": settings})
    assert [finding.level for finding in mode] == ["ok", "ok", "note"]


def test_a_block_that_short_prefixes_do_not_fill() -> None:
    [*_, found] = check_stats({**STATS, "settings": {**SETTINGS, "match_unit": 128}})
    assert found.level == "note"
    assert found.what == "prefixes of fewer than 128 tokens are never reused"
    assert "--block-size" in str(found.change)


def test_a_server_that_fails_at_scoring() -> None:
    done = doctor(FakeServer(faults=[None, Fault(status=500)]))
    assert done.exit_code == 1
    assert "BAD  does not score the same document again" in done.output


@pytest.fixture
def result() -> ScoreResult:
    with FakeServer().listen_in_thread() as url, RadixFlow(url) as client:
        return client.score_candidates("word " * 160, ["yes", "no"])


def levels(cold: ScoreResult, warm: ScoreResult) -> list[str]:
    return [finding.level for finding in check_results(cold, warm, SETTINGS)]


def with_cached(result: ScoreResult, tokens: int) -> ScoreResult:
    candidates = tuple(
        replace(one, usage=replace(one.usage, cached_tokens=tokens))
        for one in result.candidates
    )
    return replace(result, candidates=candidates)


def test_little_reuse_and_other_scores(result: ScoreResult) -> None:
    some = with_cached(result, 64)
    assert levels(result, some) == ["ok", "warn", "ok"]
    best = replace(result.best, score=result.best.score + 1)
    other = replace(some, candidates=(best, *some.candidates[1:]))
    assert levels(result, other) == ["ok", "bad", "bad"]
    for settings in ({}, {"match_unit": "many"}, {"match_unit": 0}):
        found = check_results(result, some, settings)
        assert [finding.level for finding in found] == ["ok", "ok"]
