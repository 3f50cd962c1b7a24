"""Score real questions on a real server, as people do today and with RadixFlow.

    make demo            (or: python examples/demo.py)

Starts `radixflow serve demo` on a free port, asks the bundled model questions about
documents that it never saw, shows the answers, and stops the server. Two comparisons,
each the median of three repeats, each repeat in a cache namespace of its own:

* the questions as people ask them today, vLLM's own ``/v1/completions`` with ``echo``
  in vLLM's order (policy `radix`), and through RadixFlow: seconds and tokens;
* a backlog with few-shot prompts, queued before its first round (the engine is paused
  while it arrives), in vLLM's order and in RadixFlow's: rounds and tokens.

Exits with 0 when every question was answered and RadixFlow is better in every figure.
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
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
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

DOCUMENTS_OF = {8: 2, 16: 3, 40: 1}  # facts in a document: how many such documents
SHOTS = 5
STOCK = "radix"
REPEATS = 3
STEADY_POLLS = 8
"""Polls in which the queue must stay as it is, 50 ms apart."""
SCORING_SECONDS = 300.0


def prompt_for(context: str, question: str) -> str:
    """The text whose continuation is an option: what the model was trained on."""
    return f"{context}\n\nQuestion: {question}\nAnswer:"


class DemoError(Exception):
    """The demo cannot go on; one sentence says why."""


@dataclass(frozen=True)
class Question:
    """One question, what it is about, and which of its options is right.

    Attributes:
        parts: the document, in pieces where other prompts share the first ones.
        text: the question.
        options: its options.
        gold: index of the right one.
    """

    parts: tuple[str, ...]
    text: str
    options: tuple[str, ...]
    gold: int

    @property
    def context(self) -> str:
        """Document and question, as the model reads them."""
        return prompt_for("".join(self.parts), self.text)


Scores = tuple[tuple[float, ...], ...]
"""Each question's options' log-likelihoods, in the order given."""


@dataclass(frozen=True)
class Pass:
    """The same questions once in one way.

    Attributes:
        scores: of each question's options.
        results: the SDK's results; empty for vLLM's own endpoint.
        rounds: worker rounds.
        tokens: tokens computed.
        seconds: from the first request to the last answer.
    """

    scores: Scores
    results: tuple[ScoreResult, ...]
    rounds: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Figure:
    """One measure of both ways, the medians of their repeats; less is better."""

    name: str
    stock: float
    ours: float

    @property
    def is_better(self) -> bool:
        """Whether RadixFlow's is less."""
        return self.ours < self.stock


def figure(name: str, stock: Sequence[Pass], ours: Sequence[Pass]) -> Figure:
    """The medians of an attribute of `Pass`."""
    medians = (
        statistics.median(getattr(one, name) for one in passes)
        for passes in (stock, ours)
    )
    return Figure(name, *medians)


def questions() -> list[Question]:
    """Held-out questions over shared documents."""
    wanted = dict(DOCUMENTS_OF)
    found = []
    for entry in _held_out():
        if wanted.get(entry["facts"], 0) > 0:
            wanted[entry["facts"]] -= 1
            found += _about(entry, (entry["document"],))
    return found


def few_shot_questions() -> list[Question]:
    """Questions on short documents, each behind the same answered examples."""
    short = [entry for entry in _held_out() if entry["facts"] < 8]
    examples = [entry for entry in _held_out() if entry["facts"] == 8][-SHOTS:]
    header = "".join(
        prompt_for(example["document"], first["question"])
        + f" {first['options'][first['gold']]}\n\n"
        for example in examples
        for first in example["questions"][:1]
    )
    return [
        question
        for entry in short
        for question in _about(entry, (header, entry["document"]))
    ]


def _held_out() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(HELD_OUT.read_text("utf-8"))["documents"]
    return found


def _about(entry: dict[str, Any], parts: tuple[str, ...]) -> Iterator[Question]:
    for asked in entry["questions"]:
        yield Question(parts, asked["question"], tuple(asked["options"]), asked["gold"])


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
            # vLLM's development routes: /pause and /resume. The server is local.
            env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},
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

Ask = Callable[[str, Sequence[Question]], Awaitable[tuple[ScoreResult, ...] | Scores]]


async def through_radixflow(
    url: str, asked: Sequence[Question]
) -> tuple[ScoreResult, ...]:
    """Score every question at once, in a cache namespace of its own."""
    async with RadixFlowClient(
        url,
        max_connections=len(asked),
        cache_salt=f"demo-{uuid.uuid4().hex}",
        timeout=Timeouts(total=SCORING_SECONDS),
    ) as client:

        async def ask(question: Question) -> ScoreResult:
            return await client.score_candidates(
                list(question.parts), question.options, question=question.text
            )

        return tuple(await asyncio.gather(*map(ask, asked)))


async def through_completions(url: str, asked: Sequence[Question]) -> Scores:
    """The same with vLLM's own endpoint: one request a question, with ``echo``."""
    limits = httpx.Limits(max_connections=len(asked))
    async with httpx.AsyncClient(
        base_url=url, timeout=SCORING_SECONDS, limits=limits
    ) as http:

        async def ask(question: Question) -> tuple[float, ...]:
            context = question.context
            body = {
                "prompt": [f"{context} {option}" for option in question.options],
                "max_tokens": 1,
                "temperature": 0,
                "echo": True,
                "logprobs": 1,
            }
            answer = (await http.post("/v1/completions", json=body)).raise_for_status()
            choices = sorted(answer.json()["choices"], key=lambda one: one["index"])
            return tuple(_sum(one["logprobs"], len(context)) for one in choices)

        return tuple(await asyncio.gather(*map(ask, asked)))


def _sum(rows: dict[str, Any], context: int) -> float:
    """The log-likelihood of what follows the context; the last token is generated."""
    pairs = list(zip(rows["text_offset"], rows["token_logprobs"], strict=True))[:-1]
    return float(sum(value for offset, value in pairs if offset >= context))


def run_pass(
    http: httpx.Client,
    policy: str,
    asked: Sequence[Question],
    ask: Ask = through_radixflow,
) -> Pass:
    """All questions under one policy."""
    switch(http, policy)
    before = stats(http)["counters"]
    began = time.monotonic()
    found = asyncio.run(ask(str(http.base_url), asked))
    seconds = time.monotonic() - began
    after = stats(http)["counters"]
    grown = {name: after[name] - before[name] for name in before}
    results = tuple(one for one in found if isinstance(one, ScoreResult))
    return Pass(
        scores=tuple(
            _scores(one) if isinstance(one, ScoreResult) else one for one in found
        ),
        results=results,
        rounds=grown["rounds"],
        tokens=grown["tokens"],
        seconds=seconds,
    )


def _scores(result: ScoreResult) -> tuple[float, ...]:
    by_option = sorted(result.candidates, key=lambda candidate: candidate.index)
    return tuple(candidate.score for candidate in by_option)


def behind_a_pause(seconds: float = 60) -> Ask:
    """Ask while the engine is paused, and resume it once the queue is complete.

    Args:
        seconds: to wait for that.
    """

    async def ask(url: str, asked: Sequence[Question]) -> tuple[ScoreResult, ...]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            paused = await http.post("/pause", params={"mode": "keep"})
            paused.raise_for_status()
            try:
                asking = asyncio.create_task(through_radixflow(url, asked))
                await until_queued(http, seconds)
            finally:
                (await http.post("/resume")).raise_for_status()
            return await asking

    return ask


async def until_queued(http: httpx.AsyncClient, seconds: float) -> None:
    """Wait until the engine's queue no longer grows.

    The endpoint keeps a few rounds of work in the engine; the rest follows as it ends.

    Raises:
        DemoError: it is not so in that time.
    """
    waiting, steady = 0, 0
    with anyio.move_on_after(seconds):
        while not waiting or steady < STEADY_POLLS:
            answer = (await http.get("/v1/radixflow/stats")).raise_for_status()
            before, waiting = waiting, answer.json()["gauges"]["waiting"]
            steady = steady + 1 if waiting == before else 0
            await anyio.sleep(0.05)
        return
    raise DemoError(f"The queue was not complete in {seconds:g} s: {waiting} waited.")


# --- what is shown --------------------------------------------------------------------


def answers(asked: Sequence[Question], done: Pass) -> Table:
    """One line a question."""
    table = Table(title="Held-out questions")
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


def comparison(title: str, names: tuple[str, str], figures: Sequence[Figure]) -> Table:
    """One line a way, one column a figure."""
    table = Table(title=title)
    table.add_column("")
    for one in figures:
        table.add_column(one.name, justify="right")
    for name, values in (
        (names[0], [one.stock for one in figures]),
        (names[1], [one.ours for one in figures]),
    ):
        table.add_row(name, *map(shown, values))
    return table


def shown(value: float) -> str:
    """A count without a fraction, seconds with one."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.2f}"


def changes(figures: Sequence[Figure]) -> str:
    """Each figure from one way to the other."""
    return ", ".join(
        f"{one.name} {shown(one.stock)} -> {shown(one.ours)}" for one in figures
    )


def accuracy(asked: Sequence[Question], done: Pass) -> str:
    """How many of the answers are right."""
    right = sum(
        result.best.index == question.gold
        for question, result in zip(asked, done.results, strict=True)
    )
    return f"{right} of {len(asked)} right ({right / len(asked):.0%})"


def difference(one: Pass, other: Pass) -> float:
    """Largest difference between an option's two scores: order must not matter."""
    return max(
        abs(left - right)
        for first, second in zip(one.scores, other.scores, strict=True)
        for left, right in zip(first, second, strict=True)
    )


def check(figures: Sequence[Figure]) -> None:
    """Hold RadixFlow to every figure that was shown.

    Raises:
        DemoError: one is not better.
    """
    worse = [one for one in figures if not one.is_better]
    if worse:
        raise DemoError(f"RadixFlow is not better in {changes(worse)}.")


@dataclass(frozen=True)
class Compared:
    """Repeats of the same questions in two ways."""

    stock: list[Pass]
    ours: list[Pass]

    def figures(self, *names: str) -> list[Figure]:
        """The medians of some attributes of `Pass`."""
        return [figure(name, self.stock, self.ours) for name in names]


def compare(
    http: httpx.Client, console: Console, asked: Sequence[Question]
) -> tuple[Compared, Compared]:
    """Both comparisons, their repeats interleaved.

    Returns:
        The questions as they are asked today and through RadixFlow; the backlog in
        vLLM's order and in RadixFlow's.
    """
    policy = stats(http)["policy"]["name"]
    backlog = [*asked, *few_shot_questions()]
    today, ordered = Compared([], []), Compared([], [])
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        # Whoever is first pays for what is done once.
        bar = progress.add_task("warming up", total=2 + 4 * REPEATS)
        run_pass(http, policy, backlog)
        progress.advance(bar)
        run_pass(http, STOCK, asked[:4], through_completions)
        progress.advance(bar)
        steps: tuple[tuple[str, list[Pass], str, Sequence[Question], Ask], ...] = (
            ("as today", today.stock, STOCK, asked, through_completions),
            ("with RadixFlow", today.ours, policy, asked, through_radixflow),
            (
                "a backlog, as today",
                ordered.stock,
                STOCK,
                backlog,
                behind_a_pause(),
            ),
            (
                "a backlog, with RadixFlow",
                ordered.ours,
                policy,
                backlog,
                behind_a_pause(),
            ),
        )
        for _ in range(REPEATS):
            for label, passes, name, some, ask in steps:
                progress.update(bar, description=label)
                passes.append(run_pass(http, name, some, ask))
                progress.advance(bar)
    return today, ordered


def show(console: Console, folder: Path, seconds: float) -> None:
    """The whole demo.

    Raises:
        DemoError: the server did not come up, did not do as asked, or RadixFlow is not
            better in every figure.
        RadixFlowError: a question could not be scored.
    """
    asked = questions()
    with (
        served(folder) as (url, process),
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        with console.status("starting the server (log: server.log)"):
            wait_until_up(http, process, seconds)
        today, ordered = compare(http, console, asked)
    asked_figures = today.figures("seconds", "tokens")
    backlog_figures = ordered.figures("rounds", "tokens")
    console.print(answers(asked, today.ours[-1]))
    console.print(
        comparison(
            f"The same {len(asked)} questions at once",
            ("vLLM's /v1/completions with echo", "RadixFlow's /v1/branches"),
            asked_figures,
        )
    )
    console.print(
        comparison(
            f"A backlog of {len(ordered.ours[0].scores)} questions, half with few-shot",
            ("vLLM's order", "RadixFlow's order"),
            backlog_figures,
        )
    )
    alike = max(difference(today.stock[0], one) for one in [*today.stock, *today.ours])
    console.print(
        f"{accuracy(asked, today.ours[-1])}; scores alike within {alike:.3f} nat; "
        f"at once: {changes(asked_figures)}; backlog: {changes(backlog_figures)}",
        soft_wrap=True,
        highlight=False,
    )
    check([*asked_figures, *backlog_figures])


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
