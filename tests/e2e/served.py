"""A real server in a process of its own, and what tests ask it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

SECONDS_TO_START = 280.0
SECONDS_TO_STOP = 30.0
KEY = "a-key-of-the-tests"


@dataclass(frozen=True)
class Answer:
    """The events of one group, sorted.

    Attributes:
        started: the first event.
        branches: ``branch.completed`` of each index.
        failed: ``branch.failed`` of each index.
        completed: the last event.
    """

    started: dict[str, Any]
    branches: dict[int, dict[str, Any]]
    failed: dict[int, dict[str, Any]]
    completed: dict[str, Any]

    @classmethod
    def read(cls, text: str) -> Answer:
        started, *branches, completed = (json.loads(line) for line in text.splitlines())
        assert started["event"] == "group.started"
        assert completed["event"] == "group.completed"
        kinds: dict[str, dict[int, dict[str, Any]]] = {
            "branch.completed": {},
            "branch.failed": {},
        }
        for event in branches:
            kinds[event["event"]][event["index"]] = event
        assert len(branches) == started["branches"]
        return cls(started, *kinds.values(), completed)

    @property
    def rows(self) -> list[list[float]]:
        """Token log-probabilities of each branch, in the order sent."""
        return [self.branches[i]["token_logprobs"] for i in range(len(self.branches))]

    @property
    def sums(self) -> list[float]:
        return [sum(row) for row in self.rows]

    @property
    def labels(self) -> list[list[float]]:
        """Label log-probabilities of each branch, in the order sent."""
        return [
            [label["logprob"] for label in self.branches[i]["labels"]]
            for i in range(len(self.branches))
        ]

    @property
    def cached(self) -> list[int]:
        return [
            self.branches[i]["usage"]["cached_tokens"]
            for i in range(len(self.branches))
        ]

    @property
    def usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = self.completed["usage"]
        return usage


class Served:
    """A server that is up.

    Attributes:
        url: where it is.
        log: the file that its output goes to.
        process: the launcher, which leads a process group of its own.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log
        self.headers = {"Authorization": f"Bearer {KEY}"}
        # uvicorn closes an idle connection after 5 s: leave it before, not meanwhile.
        limits = httpx.Limits(keepalive_expiry=2)
        self.http = httpx.Client(
            base_url=url, headers=self.headers, timeout=120, limits=limits
        )

    def post(self, body: Any, path: str = "/v1/branches", **options: Any) -> Any:
        return self.http.post(path, json=body, **options)

    def group(self, document: Any, branches: Sequence[str], **fields: Any) -> Answer:
        """Score a group, all of whose branches must complete."""
        answer = self.post(body(document, branches, **fields))
        assert answer.status_code == 200, answer.text
        read = Answer.read(answer.text)
        assert not read.failed
        return read

    def stats(self) -> dict[str, Any]:
        answer = self.http.get("/v1/radixflow/stats")
        assert answer.status_code == 200, answer.text
        stats: dict[str, Any] = answer.json()
        return stats

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.stats()["counters"]
        return counters

    def in_flight(self) -> int:
        """Requests in the engine; between two rounds none of a group's may run."""
        gauges = self.stats()["gauges"]
        return int(gauges["running"] + gauges["waiting"])

    def busy(self) -> bool:
        """Whether anything runs or waits in the engine.

        A branch runs for one round, so between two rounds there may be none running.
        """
        gauges = self.stats()["gauges"]
        return any(gauges[name] for name in ("running", "waiting"))

    def wait_until_idle(self, seconds: float = 60) -> float:
        """Seconds until nothing runs and nothing waits in the engine."""
        began = time.monotonic()
        while in_flight := self.in_flight():
            assert time.monotonic() - began < seconds, in_flight
            time.sleep(0.02)
        return time.monotonic() - began

    @contextlib.contextmanager
    def policy(self, name: str) -> Iterator[None]:
        """Run under another policy, then under the old one again."""
        before = self.stats()["policy"]["name"]
        self.wait_until_idle()
        assert self.post({"name": name}, "/v1/radixflow/policy").status_code == 200
        try:
            yield
        finally:
            self.wait_until_idle()
            self.post({"name": before}, "/v1/radixflow/policy")

    def uncached(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of every prompt token but the first, without the cache.

        vLLM's own ``/v1/completions`` with ``echo`` does not read the prefix cache.
        """
        answer = self.post(
            {
                "model": "radixflow-demo",
                "prompt": [list(prompt) for prompt in prompts],
                "max_tokens": 1,
                "temperature": 0,
                "echo": True,
                "logprobs": 0,
            },
            "/v1/completions",
        )
        assert answer.status_code == 200, answer.text
        choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
        return [choice["logprobs"]["token_logprobs"][1:-1] for choice in choices]

    def tail(self, lines: int = 60) -> str:
        text = self.log.read_text("utf-8", errors="replace")
        told = [line for line in text.splitlines() if not line.endswith(" 200 OK")]
        return "\n".join(told[-lines:])

    def alive(self) -> list[int]:
        """Processes of the server's group."""
        return group_members(self.process.pid)


def body(document: Any, branches: Sequence[str], **fields: Any) -> dict[str, Any]:
    if isinstance(document, str):
        document = {"text": document}
    texts = [{"text": text} for text in branches]
    return {"document": document, "branches": texts} | fields


def rounded(value: float) -> Any:
    """A token's log-probability as bfloat16 gives it.

    The largest difference seen on the bundled model is 0.03; a stale or a cut state
    is off by tenths.
    """
    return pytest.approx(value, abs=0.07)


_salts = itertools.count()


def fresh_salt() -> str:
    """A cache namespace that nobody has used: whatever runs in it is cold."""
    return f"{secrets.token_hex(4)}-{next(_salts)}"


@contextlib.contextmanager
def serving(
    folder: Path, *flags: str, model: str = "demo", **environment: str
) -> Iterator[Served]:
    """``radixflow serve`` on a free port, up when the block begins."""
    with launched(folder, *flags, model=model, **environment) as (process, url, log):
        served = Served(process, url, log)
        with contextlib.closing(served.http):
            wait_for_health(served)
            yield served


@contextlib.contextmanager
def launched(
    folder: Path, *flags: str, model: str = "demo", **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """The same, just begun; nothing of it is left after the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / f"server-{port}.log"
    launcher = Path(sys.executable).with_name("radixflow")
    command = [str(launcher), "serve", model, "--port", str(port), *flags]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RADIXFLOW_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=inherited | environment,
        )
    try:
        yield process, f"http://127.0.0.1:{port}", log
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask once, as Ctrl-C does, then kill what is left of the process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_STOP)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def group_members(leader: int) -> list[int]:
    """Ids of the running processes in a process group (Linux)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
            if int(group) == leader and state != "Z":
                members.append(int(stat.parent.name))
    return members


def wait_for_health(served: Served) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if served.process.poll() is not None:
            break
        with contextlib.suppress(httpx.TransportError):
            if served.http.get("/health", timeout=5).status_code == 200:
                return
        time.sleep(0.25)
    raise AssertionError(f"the server did not start; its log ends:\n{served.tail()}")
