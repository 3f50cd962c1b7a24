"""The SDK, its command line and the quickstart, against the real server."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from radixflow_sdk import (
    APIConnectionError,
    AuthenticationError,
    ContextTooLongError,
    InvalidInputError,
    ModelNotFoundError,
    RadixFlow,
    RadixFlowClient,
    RetryPolicy,
)
from tests.e2e.loads import held_out, loads
from tests.e2e.served import KEY, Served

pytestmark = [pytest.mark.server, pytest.mark.asyncio]

ROOT = Path(__file__).parents[2]
ONCE = RetryPolicy(attempts=1)


def connect(server: Served, **changes: object) -> RadixFlowClient:
    settings: dict[str, object] = {"api_key": KEY, "retry": ONCE, "timeout": 120.0}
    return RadixFlowClient(server.url, **settings | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("scoring", ["likelihood", "label"])
async def test_one_call(server: Served, salt: str, scoring: str) -> None:
    load = loads()[5]
    options = [*load.options, load.options[0]]
    async with connect(server, cache_salt=salt) as client:
        result = await client.score_candidates(
            load.document,
            options,
            question=load.question,
            scoring=scoring,  # type: ignore[arg-type]
        )
    assert result.model == "radixflow-demo"
    scores = [candidate.score for candidate in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert sum(c.probability for c in result.candidates) == pytest.approx(1)
    first, last = (
        next(c for c in result.candidates if c.index == index) for index in (0, 4)
    )
    assert (last.duplicate_of, first.score) == (0, last.score)
    sent = [c for c in result.candidates if c.duplicate_of is None]
    # One branch computes what all share, and the others read it.
    assert max(c.cached_tokens for c in sent) >= result.document_tokens - 16
    assert result.usage.rounds is not None
    assert result.usage.computed_tokens == sum(c.usage.computed_tokens for c in sent)
    assert result.usage.computed_tokens >= result.shared_tokens


async def test_parts_are_kept_for_the_groups_that_follow(
    server: Served, salt: str
) -> None:
    shots = "".join(f"Person {i} lives in town number {i}.\n\n" for i in range(40))
    found = {}
    async with connect(server) as client:
        for text in ("Anna lives in Oslo.", "Tom lives in Rome."):
            for name, document in (("parts", [shots, text]), ("whole", shots + text)):
                found[name] = await client.score_candidates(
                    document, ["Oslo city", "Rome town"], cache_salt=f"{salt}-{name}"
                )
    parts, whole = found["parts"], found["whole"]
    assert parts.document_tokens == whole.document_tokens > 300
    assert parts.usage.computed_tokens < parts.shared_tokens / 2
    for one in parts.candidates:
        [other] = [c for c in whole.candidates if c.index == one.index]
        assert one.score == pytest.approx(other.score, abs=0.1)


async def test_the_sdk_asks_what_the_server_was_asked(
    server: Served, salt: str
) -> None:
    load = loads()[4]
    raw = server.group(
        load.document, load.branches, question=load.text_question, cache_salt=salt
    )
    async with connect(server, cache_salt=salt) as client:
        result = await client.score_candidates(
            load.document, load.options, question=load.question
        )
    for candidate in result.candidates:
        assert candidate.score == pytest.approx(raw.sums[candidate.index], abs=0.001)
        assert list(candidate.token_ids) == raw.branches[candidate.index]["token_ids"]


async def test_candidates_stream(server: Served) -> None:
    load = loads()[3]
    async with connect(server, model="radixflow-demo") as client:
        stream = client.stream_candidates(
            load.document, load.options, question=load.question
        )
        seen = [candidate.index async for candidate in stream]
    assert sorted(seen) == [0, 1, 2, 3]


async def test_many_calls_of_one_client(server: Served) -> None:
    async with connect(server) as client, asyncio.TaskGroup() as tasks:
        calls = [
            tasks.create_task(
                client.score_candidates(
                    document["document"],
                    question["options"],
                    question=question["question"],
                )
            )
            for document in held_out()[:6]
            for question in document["questions"]
        ]
    assert all(len(call.result().candidates) == 4 for call in calls)


async def test_errors_have_their_types(server: Served) -> None:
    async with connect(server, model="gpt") as client:
        with pytest.raises(ModelNotFoundError, match="radixflow-demo"):
            await client.score_candidates("d", [" a"])
    async with connect(server, api_key="wrong") as client:
        with pytest.raises(AuthenticationError):
            await client.score_candidates("d", [" a"])
    async with connect(server) as client:
        with pytest.raises(ContextTooLongError) as caught:
            await client.score_candidates("word " * 9000, [" a"])
        assert caught.value.status == 422
        with pytest.raises(InvalidInputError):
            await client.score_candidates("", [" a"])
        assert (await client.score_candidates("d", [" a"])).candidates


async def test_the_server_is_down() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        async with RadixFlowClient(url, retry=ONCE) as client:
            with pytest.raises(APIConnectionError):
                await client.score_candidates("d", [" a"])


def run(server: Served, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | {"RADIXFLOW_BASE_URL": server.url, "RADIXFLOW_API_KEY": KEY},
    )


async def test_the_blocking_client(server: Served) -> None:
    def ask() -> list[str | None]:
        with RadixFlow(server.url, api_key=KEY) as client:
            result = client.score_candidates("Anna lives in Oslo.", ["Oslo", "Rome"])
        return [candidate.text for candidate in result.candidates]

    assert sorted(await asyncio.to_thread(ask), key=str) == ["Oslo", "Rome"]


async def test_the_quickstart_runs(server: Served) -> None:
    ran = await asyncio.to_thread(run, server, sys.executable, "examples/quickstart.py")
    assert ran.returncode == 0, ran.stderr
    best, *others = ran.stdout.splitlines()
    assert best.endswith("Port Alma")
    assert len(others) == 2


async def test_the_command_line_scores(server: Served, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text(loads()[3].document + "\n", encoding="utf-8")
    radixflow = str(Path(sys.executable).with_name("radixflow"))
    command = [radixflow, "score", "--document", str(document), "--question", "Where?"]
    for option in ("Oslo", "Rome"):
        command += ["--option", option]
    shown = await asyncio.to_thread(run, server, *command)
    assert shown.returncode == 0, shown.stderr
    assert "Oslo" in shown.stdout
    told = await asyncio.to_thread(run, server, *command, "--json")
    assert [c["text"] for c in json.loads(told.stdout)["candidates"]]
    wrong = await asyncio.to_thread(run, server, *command, "--model", "gpt")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("radixflow: ")
    assert wrong.stderr.count("\n") == 1
