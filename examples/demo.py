"""Score real questions on a real server, in stock order and with RadixFlow.

    make demo            (or: python examples/demo.py)

Starts `radixflow serve demo` on a free port, asks the bundled model questions about
documents that it never saw, all at once, shows the answers, and stops the server. The
same questions are asked twice, each time in a cache namespace of their own: once under
the policy `radix` (vLLM's own order), once under the server's default. Exits with 0
when every question was answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from radixflow_sdk import RadixFlowClient, RadixFlowError, ScoreResult, Timeouts
from server_ext.demo import HELD_OUT

DOCUMENTS_OF = {4: 2, 8: 2, 16: 2}  # facts in a document: how many such documents
STOCK = "radix"
SCORING_SECONDS = 300.0


class DemoError(Exception):
    """The demo cannot go on; one sentence says why."""


@dataclass(frozen=True)
class Question:
    """One question, its document, and which of its options is right."""

    document: str
    text: str
    options: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Pass:
    """The same questions under one policy."""

    policy: str
    results: tuple[ScoreResult, ...]
    counters: dict[str, int]
    seconds: float

    @property
    def summary(self) -> tuple[str, ...]:
        """The columns of the comparison."""
        counters = self.counters
        prompt = sum(result.usage.prompt_tokens for result in self.results)
        return (
            self.policy,
            str(counters["rounds"]),
            f"{counters['rows'] / counters['rounds']:.2f}",
            f"{counters['tokens']:,}",
            f"{1 - counters['tokens'] / prompt:.1%}",
            f"{self.seconds:.1f} s",
        )


def questions() -> list[Question]:
    """Held-out questions over shared documents."""
    wanted = dict(DOCUMENTS_OF)
    found = []
    for entry in json.loads(HELD_OUT.read_text(encoding="utf-8"))["documents"]:
        if wanted.get(entry["facts"], 0) > 0:
            wanted[entry["facts"]] -= 1
            found += [
                Question(
                    document=entry["document"],
                    text=asked["question"],
                    options=tuple(asked["options"]),
                    gold=asked["gold"],
                )
                for asked in entry["questions"]
            ]
    return found


# --- the server -----------------------------------------------------------------------


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The bundled model on a free port, stopped at the end whatever happens."""
    command = Path(sys.executable).with_name("radixflow")
    if not command.exists():
        raise DemoError(f"{command} does not exist; run `make demo` to set it up.")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [command, "serve", "demo", "--port", port],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to hand on, once
        )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes], seconds: float = 20) -> None:
    """Ask the server to end, then end what is left of its process group."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until_up(
    http: httpx.Client, process: subprocess.Popen[bytes], seconds: float
) -> None:
    """Wait for the server's health.

    Raises:
        DemoError: it ended, or took too long.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoError(f"The server ended early, with status {process.poll()}.")
        with contextlib.suppress(httpx.TransportError):
            if http.get("/health").is_success:
                return
        time.sleep(0.25)
    raise DemoError(f"The server was not up after {seconds:.0f} s.")


def stats(http: httpx.Client) -> dict[str, Any]:
    """The scheduler's counters and settings."""
    answer: dict[str, Any] = http.get("/v1/radixflow/stats").raise_for_status().json()
    return answer


def switch(http: httpx.Client, policy: str) -> None:
    """Switch the policy of the server once it is idle.

    Raises:
        DemoError: it refused.
    """
    deadline = time.monotonic() + 30
    while True:
        answer = http.post("/v1/radixflow/policy", json={"name": policy})
        if answer.status_code != 409 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if not answer.is_success:
        raise DemoError(f"The server refused the policy {policy}: {answer.text}")


# --- the questions --------------------------------------------------------------------


async def ask_all(
    url: str, asked: list[Question], progress: Progress, label: str
) -> tuple[ScoreResult, ...]:
    """Score every question at once, in a cache namespace of its own."""
    bar = progress.add_task(label, total=len(asked))
    async with RadixFlowClient(
        url,
        max_connections=len(asked),
        cache_salt=f"demo-{uuid.uuid4().hex}",
        timeout=Timeouts(total=SCORING_SECONDS),
    ) as client:

        async def ask(question: Question) -> ScoreResult:
            result = await client.score_candidates(
                question.document, question.options, question=question.text
            )
            progress.advance(bar)
            return result

        return tuple(await asyncio.gather(*map(ask, asked)))


def run_pass(
    http: httpx.Client, policy: str, asked: list[Question], progress: Progress
) -> Pass:
    """All questions under one policy."""
    switch(http, policy)
    before = stats(http)["counters"]
    began = time.monotonic()
    label = f"{len(asked)} questions, policy {policy}"
    results = asyncio.run(ask_all(str(http.base_url), asked, progress, label))
    seconds = time.monotonic() - began
    after = stats(http)["counters"]
    grown = {name: after[name] - before[name] for name in ("rounds", "rows", "tokens")}
    return Pass(policy, results, grown, seconds)


# --- what is shown --------------------------------------------------------------------


def answers(asked: list[Question], done: Pass) -> Table:
    """One line a question."""
    table = Table(title=f"Held-out questions, policy {done.policy}")
    for name in ("question", "chosen", ""):
        table.add_column(name)
    for name in ("probability", "cached tokens", "time"):
        table.add_column(name, justify="right")
    for question, result in zip(asked, done.results, strict=True):
        best, usage = result.best, result.usage
        table.add_row(
            question.text,
            best.text,
            "right" if best.index == question.gold else "[red]wrong[/red]",
            f"{best.probability:.3f}",
            f"{usage.cached_tokens} of {usage.prompt_tokens}",
            f"{result.elapsed:.2f} s",
        )
    return table


def comparison(passes: list[Pass]) -> Table:
    """One line a policy."""
    branches = sum(len(result.candidates) for result in passes[0].results)
    table = Table(
        title=f"The same {branches} branches, all at once",
        caption="Both through /v1/branches; vLLM's own endpoint: docs/benchmarks.md",
    )
    table.add_column("policy")
    for name in ("rounds", "rows a round", "tokens computed", "reuse", "time"):
        table.add_column(name, justify="right")
    for one in passes:
        table.add_row(*one.summary)
    return table


def summary(asked: list[Question], stock: Pass, ours: Pass) -> str:
    """The last line."""
    right = sum(
        result.best.index == question.gold
        for question, result in zip(asked, ours.results, strict=True)
    )
    _, stock_rounds, stock_rows, *_ = stock.summary
    _, rounds, rows, _, reuse, _ = ours.summary
    return (
        f"{right} of {len(asked)} right ({right / len(asked):.0%}), reuse {reuse}; "
        f"rounds {stock_rounds} in stock order -> {rounds} with RadixFlow, "
        f"rows a round {stock_rows} -> {rows}; "
        f"scores alike within {difference(stock, ours):.3f} nat"
    )


def difference(one: Pass, other: Pass) -> float:
    """Largest difference between an option's two scores: order must not matter."""
    pairs = zip(one.results, other.results, strict=True)
    return max(
        abs(left.score - right.score)
        for first, second in pairs
        for left in first.candidates
        for right in second.candidates
        if left.index == right.index
    )


def show(console: Console, folder: Path, seconds: float) -> None:
    """The whole demo.

    Raises:
        DemoError: the server did not come up or did not do as asked.
        RadixFlowError: a question could not be scored.
    """
    asked = questions()
    with (
        served(folder) as (url, process),
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            start = progress.add_task("starting the server (log: server.log)", total=1)
            wait_until_up(http, process, seconds)
            progress.advance(start)
            default = stats(http)["policy"]["name"]
            # Whoever is first pays for what is done once: let a group of its own do it.
            asyncio.run(ask_all(url, asked[:1], progress, "warming up"))
            stock = run_pass(http, STOCK, asked, progress)
            ours = run_pass(http, default, asked, progress)
        console.print(answers(asked, ours))
        console.print(comparison([stock, ours]))
        console.print(summary(asked, stock, ours), soft_wrap=True, highlight=False)


def main() -> int:
    """Run the demo; 0 when it went through."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--start-timeout", type=float, default=600, help="seconds for the server"
    )
    chosen = parser.parse_args()
    # Ended from outside, the server must end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 120)
    folder = Path(tempfile.mkdtemp(prefix="radixflow-demo-"))
    try:
        show(console, folder, chosen.start_timeout)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    except (DemoError, RadixFlowError, httpx.HTTPError, OSError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        print(f"The server's log: {folder / 'server.log'}", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
