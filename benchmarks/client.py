"""What the client itself costs, against a fake server in a process of its own.

    python -m benchmarks.client

Over a real loopback socket, with 256 file descriptors: many small groups, a few large
ones, the same branches one completion each with AsyncOpenAI, calls that are cancelled,
and the time that the client adds to the server's. CPU time is the client process's own
(user and system), so that a busy machine does not decide it; only the added time is by
the clock. Comparisons are of medians of three runs, one beside the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
from httpx_aiohttp import HttpxAiohttpClient
from openai import AsyncOpenAI

from benchmarks._harness import ROOT, Claim, write_results
from radixflow_sdk import RadixFlowClient, RadixFlowError, ScoreRequest
from radixflow_sdk.testing import FakeServer, FakeTransport
from radixflow_sdk.testing._socket import listen

FILES = 256
CONCURRENCY = 64
DOCUMENT = "Anna lives in Oslo. " * 50
SERVER_SECONDS = 1.0
REPEATS = 3

OPENAI = "AsyncOpenAI, one completion a branch"
BESIDE = "groups of 4, beside it"
AIOHTTP, ALONE = ", over aiohttp", ", no HTTP and no wire"
CUT = "20 calls cancelled, then one"
ADDED, FROZEN = "added to the server's time", ", after gc.freeze()"


class TimedServer:
    """`FakeServer`, ``/v1/completions`` beside it, and its own times."""

    def __init__(self, delay: float) -> None:
        self._inner = FakeServer(delay=delay)
        self._seconds: dict[str, float] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/times":
            await self._json(send, self._seconds)
            self._seconds = {}
        elif scope["path"] == "/v1/completions":
            await receive()
            await self._json(send, COMPLETION)
        else:
            began = time.perf_counter()
            await self._inner(scope, receive, send)
            if name := dict(scope["headers"]).get(b"x-request-id"):
                self._seconds[name.decode()] = time.perf_counter() - began
                if len(self._seconds) > 10_000:
                    self._seconds.clear()

    async def _json(self, send: Any, value: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = json.dumps(value).encode()
        await send({"type": "http.response.body", "body": body, "more_body": False})


COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "fake",
    "choices": [
        {
            "index": 0,
            "text": " yes",
            "finish_reason": "length",
            "logprobs": {
                "tokens": [" yes"],
                "token_logprobs": [-0.5],
                "top_logprobs": [{" yes": -0.5}],
                "text_offset": [0],
            },
        }
    ],
    "usage": {"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201},
}


async def serve(port: int, delay: float) -> None:
    gc.freeze()  # its pauses are not the client's
    async with listen(TimedServer(delay), port=port):
        await asyncio.Event().wait()


@contextlib.contextmanager
def server(delay: float = 0.0) -> Iterator[str]:
    """The fake server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.client", "--serve", str(port)]
    process = subprocess.Popen([*command, "--delay", str(delay)], cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/v1/models")
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


class Meter:
    """CPU, clock, memory and files of this process, since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), os.times()
        self.files: list[int] = []
        self.memory: list[float] = []

    def look(self) -> None:
        """Note files and memory as they are now."""
        self.files.append(len(os.listdir("/proc/self/fd")))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(round(pages * resource.getpagesize() / 2**20, 1))

    def result(self, name: str, branches: int, **more: Any) -> dict[str, Any]:
        """What was used."""
        now = os.times()
        user, system = now.user - self._cpu.user, now.system - self._cpu.system
        return {
            "run": name,
            "branches": branches,
            "cpu_user_s": round(user, 3),
            "cpu_system_s": round(system, 3),
            "cpu_ms_per_branch": round(1000 * (user + system) / branches, 4),
            "wall_s": round(time.perf_counter() - self._wall, 2),
            "load_average": round(os.getloadavg()[0], 1),
            **more,
            "files": self.files,
            "memory_mib": self.memory,
        }


def requests(groups: int, branches: int) -> Iterator[ScoreRequest]:
    options = [f"option {number}" for number in range(branches)]
    for number in range(groups):
        yield ScoreRequest(document=f"{number}. {DOCUMENT}", options=options)


@contextlib.asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[RadixFlowClient]:
    async with RadixFlowClient(
        url, model="fake", max_connections=CONCURRENCY, **options
    ) as connected:
        await connected.score_candidates("warm", ["up"])
        yield connected


async def bare(url: str, groups: int) -> dict[str, Any]:
    """The floor: the same requests by httpx alone, answers thrown away."""
    body = {"document": {"text": DOCUMENT}, "branches": [{"text": "a"}] * 4}
    async with httpx.AsyncClient() as connected:
        meter = Meter()
        for _ in range(groups):
            where = f"{url}/v1/branches"
            async with connected.stream("POST", where, json=body) as answer:
                async for _ in answer.aiter_bytes():
                    pass
    return meter.result("httpx alone, a group of 4 a request", groups * 4)


async def many(
    url: str, groups: int, branches: int, name: str = "", **options: Any
) -> dict[str, Any]:
    """All groups through `score_many`; none may fail."""
    errors: dict[str, int] = {}
    async with client(url, **options) as connected:
        meter = Meter()
        async with connected.score_many(requests(groups, branches)) as outcomes:
            done = 0
            async for outcome in outcomes:
                done += 1
                if outcome.error is not None:
                    kind = type(outcome.error).__name__
                    errors[kind] = errors.get(kind, 0) + 1
                if done % max(groups // 10, 1) == 0:
                    meter.look()
    name = name or f"{groups} x {branches}"
    return meter.result(name, groups * branches, errors=errors)


async def over_aiohttp(url: str, groups: int) -> dict[str, Any]:
    """`many` with the extra ``aiohttp``."""
    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with HttpxAiohttpClient(timeout=300, limits=limits) as http:
        return await many(url, groups, 4, BESIDE + AIOHTTP, http_client=http)


async def without_http(groups: int) -> dict[str, Any]:
    """`many` on a table in this process: planning, turns, retries, folding, ranking."""
    fake = FakeTransport()
    return await many("http://none", groups, 4, BESIDE + ALONE, transport=fake)


async def cancelled(url: str, rounds: int) -> dict[str, Any]:
    """Twenty calls cancelled at 50 ms on two connections, then one that must work."""
    good = 0
    async with RadixFlowClient(url, model="fake", max_connections=2) as connected:
        meter = Meter()
        for _ in range(rounds):
            with anyio.move_on_after(0.05):
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(connected.score_candidates, "d", ["a", "b"])
            with contextlib.suppress(RadixFlowError):
                await connected.score_candidates("d", ["a", "b"], timeout=10)
                good += 1
            meter.look()
    # A round's calls are 2 branches each; how many of them began is chance.
    return meter.result(CUT, rounds * 2, rounds=good)


async def openai(url: str, branches: int) -> dict[str, Any]:
    """One completion for each branch, as many at a time as we have groups."""
    left = iter(range(branches))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as connected:

        async def work() -> None:
            for number in left:
                prompt = f"{number // 4}. {DOCUMENT} option {number % 4}"
                await connected.completions.create(
                    model="fake", prompt=prompt, max_tokens=1, logprobs=1
                )

        await connected.completions.create(model="fake", prompt="warm up")
        meter = Meter()
        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        meter.look()
    return meter.result(OPENAI, branches)


async def paced(groups: int) -> AsyncIterator[ScoreRequest]:
    """As many groups a second as keep `CONCURRENCY` of them under way."""
    began = time.perf_counter()
    for number, request in enumerate(requests(groups, 4)):
        due = began + number * SERVER_SECONDS / CONCURRENCY
        await asyncio.sleep(due - time.perf_counter())
        yield request


async def added(url: str, groups: int, how: str = "") -> dict[str, Any]:
    """By the clock: a call's time less the server's own, at full concurrency."""
    async with client(url) as connected:
        outcomes = await connected.score_all(requests(CONCURRENCY, 4))  # connections
        meter = Meter()
        outcomes = await connected.score_all(paced(groups))
        result = meter.result(ADDED + how, groups * 4)
        async with httpx.AsyncClient() as http:
            times = (await http.get(f"{url}/times")).json()
    results = [outcome.unwrap() for outcome in outcomes]
    extra = sorted(1000 * (r.elapsed - times[r.request_id]) for r in results)
    return {
        **result,
        "server_s": round(statistics.median(times.values()), 3),
        "added_ms_median": round(statistics.median(extra), 2),
        "added_ms_p99": round(extra[int(0.99 * (len(extra) - 1))], 2),
    }


def claims(raw: list[dict[str, Any]]) -> list[Claim]:
    named: dict[str, list[dict[str, Any]]] = {}
    for run in raw:
        named.setdefault(run["run"], []).append(run)
    small, large = raw[:2]
    found = []
    for run in (small, large):
        name, memory = run["run"], run["memory_mib"]
        found += [
            Claim(f"{name}: failed groups", sum(run["errors"].values()), "", 0, "<="),
            Claim(
                f"{name}: client CPU",
                run["cpu_ms_per_branch"],
                "ms a branch",
                0.15,
                "<=",
            ),
            Claim(f"{name}: most open files", max(run["files"]), "", FILES, "<"),
            Claim(
                f"{name}: more files open at the end than after a tenth",
                run["files"][-1] - run["files"][0],
                "",
                0,
                "<=",
            ),
            Claim(
                f"{name}: memory grown from two tenths to the end",
                round(memory[-1] - memory[1], 1),
                "MiB",
                8.0,
                "<=",
            ),
        ]
    other = median(named[OPENAI], "cpu_ms_per_branch")
    for name in (BESIDE, BESIDE + AIOHTTP, large["run"]):
        ratio = other / median(named[name], "cpu_ms_per_branch")
        title = f"{name}: AsyncOpenAI's CPU a branch over ours"
        found.append(Claim(title, round(ratio, 1), "x", 5.0, ">="))
    [cut] = named[CUT]
    name = "rounds after whose 20 cancelled calls the next call failed"
    found.append(Claim(name, len(cut["files"]) - cut["rounds"], "", 0, "<="))
    name = "most open files in those rounds"
    found.append(Claim(name, max(cut["files"]), "", FILES, "<"))
    for how in (ADDED, ADDED + FROZEN):
        title = f"p99 {how}, {CONCURRENCY} groups at a time"
        found.append(Claim(title, median(named[how], "added_ms_p99"), "ms", 5.0, "<="))
    return found


def median(runs: list[dict[str, Any]], figure: str) -> float:
    return statistics.median(run[figure] for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000, help="groups of 4")
    parser.add_argument("--large", type=int, default=100, help="groups of 1,000")
    parser.add_argument("--openai", type=int, default=4_000, help="completions")
    parser.add_argument("--cancelled", type=int, default=50, help="rounds of 20 calls")
    parser.add_argument("--added", type=int, default=640, help="groups by the clock")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--delay", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.serve, given.delay))
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    groups = given.openai // 4
    with server() as url:
        raw = [
            asyncio.run(many(url, given.groups, 4)),
            asyncio.run(many(url, given.large, 1000)),
        ]
        for _ in range(REPEATS):  # one beside the other, under the same load
            raw += [
                asyncio.run(openai(url, given.openai)),
                asyncio.run(many(url, groups, 4, BESIDE)),
                asyncio.run(over_aiohttp(url, groups)),
                asyncio.run(without_http(groups)),
                asyncio.run(bare(url, groups)),
            ]
    with server(SERVER_SECONDS / 4) as url:
        raw.append(asyncio.run(cancelled(url, given.cancelled)))
        raw += [asyncio.run(added(url, given.added)) for _ in range(REPEATS)]
        gc.collect()
        gc.freeze()
        raw += [asyncio.run(added(url, given.added, FROZEN)) for _ in range(REPEATS)]
    found = claims(raw)
    path = write_results(
        "client",
        command=shlex.join(["python", "-m", "benchmarks.client", *sys.argv[1:]]),
        raw=raw,
        claims=found,
        note="CPU is user and system time of the client process. The run 'httpx alone' "
        "is the floor below which no client on httpx can be.",
    )
    for claim in found:
        sign = "ok " if claim.met else "NOT"
        target = f"({claim.op} {claim.target:g})"
        print(f"{sign} {claim.name}: {claim.value:g} {claim.unit} {target}")
    print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
