"""Four schedules on one machine, in one run, on one load: stock to RadixFlow.

    python benchmarks/end_to_end.py            # all of it, 3 repeats an arm
    python benchmarks/end_to_end.py --quick    # one small load once, for a test

Arms (the same flags, the bundled model, a fresh cache namespace for each run):

* ``stock``: vLLM's own scheduler class, spoken to as anybody would: one
  ``POST /v1/completions`` a group with all its prompts. In likelihood mode that is
  ``echo`` with ``logprobs``, for which vLLM reads nothing from the cache.
* ``stock+endpoint``: the same server through ``/v1/branches``, which sends the document
  ahead (label mode only: a stock scheduler cannot keep a hit below the first scored
  row, so the endpoint recomputes likelihoods there).
* ``radix``, ``radixflow``, ``radixflow+``: our scheduler under that policy, through
  ``/v1/branches``: the native order, the paper's method, and ours (the default), which
  also uses the hints.

Rounds, rows and tokens are noted by the scheduler itself, for all arms by the same
lines (`_rounds`). Reuse is the share of the branches' prompt tokens that no round
computed, the producers' work counted as a cost: 1 - scheduled / prompt tokens. Every
group is sent at once. Runs of the arms are interleaved, so that a busy machine hits
all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._harness import (
    BenchmarkError,
    Claim,
    Server,
    show_claims,
    spread,
    write_results,
)
from examples.reading import (
    MOST_FACTS,
    ReadingDocument,
    ReadingQuestion,
    label_prompt,
    likelihood_prompt,
    make_document,
)
from radixflow_sdk import RadixFlowClient, RadixFlowError, ScoreResult, Timeouts

ARMS = {
    "label": ("stock", "stock+endpoint", "radix", "radixflow", "radixflow+"),
    "likelihood": ("stock", "radix", "radixflow", "radixflow+"),
}
OURS = "radixflow+"
SECONDS = 1200.0


@dataclass(frozen=True)
class Group:
    """One question with its document."""

    document: str
    question: ReadingQuestion


@dataclass(frozen=True)
class Answer:
    """What a group came to: each option's score, where it could be read."""

    scores: tuple[float, ...] | None
    prompt_tokens: int
    seconds: float


def loads(quick: bool) -> dict[str, list[Group]]:
    """The named loads; 4 options a group."""
    if quick:
        return {"quick": _groups(_documents(range(6, 22, 4), questions=1, seed=7))}
    # About 17.7 tokens a fact and its filler: 100 to 700, and 1,000 to 3,000 tokens.
    short = [6 + round(34 * step / 23) for step in range(24)]
    fewer = [6 + round(34 * step / 7) for step in range(8)]
    long = [57 + round(113 * step / 7) for step in range(8)]
    return {
        "backlog": _groups(_documents(short, questions=1, seed=1)),
        "questions": _groups(_documents(fewer, questions=3, seed=2)),
        "long": _groups(_documents(long, questions=1, seed=3)),
    }


def _documents(
    facts: Sequence[int], *, questions: int, seed: int
) -> Iterator[ReadingDocument]:
    # Long and short ones mixed: neither order of lengths is what a server sees.
    for place, count in enumerate(sorted(facts, key=lambda n: (n * 7919) % 101)):
        stated = min(count, MOST_FACTS)
        yield make_document(
            seed=9_000_000 + 1000 * seed + place,
            facts=stated,
            questions=questions,
            filler=(2 * count - stated) / stated,
            held_out=True,
        )


def _groups(documents: Iterator[ReadingDocument]) -> list[Group]:
    return [
        Group(document.text, question)
        for document in documents
        for question in document.questions
    ]


# --- one run --------------------------------------------------------------------------


async def through_endpoint(
    url: str, groups: Sequence[Group], mode: str, salt: str
) -> list[Answer]:
    """All groups at once through ``/v1/branches``."""
    async with RadixFlowClient(
        url,
        max_connections=len(groups),
        cache_salt=salt,
        timeout=Timeouts(total=SECONDS),
    ) as client:

        async def ask(group: Group) -> Answer:
            result = await client.score_candidates(
                group.document,
                group.question.options,
                question=group.question.question,
                scoring="label" if mode == "label" else "likelihood",
            )
            return _answer(result)

        return await asyncio.gather(*map(ask, groups))


def _answer(result: ScoreResult) -> Answer:
    by_option = sorted(result.candidates, key=lambda candidate: candidate.index)
    return Answer(
        tuple(candidate.score for candidate in by_option),
        result.usage.prompt_tokens,
        result.elapsed,
    )


async def through_completions(
    url: str, groups: Sequence[Group], mode: str, salt: str
) -> list[Answer]:
    """All groups at once through vLLM's own ``/v1/completions``."""
    limits = httpx.Limits(max_connections=len(groups))
    async with httpx.AsyncClient(timeout=SECONDS, limits=limits) as client:

        async def ask(group: Group) -> Answer:
            began = time.monotonic()
            prompts, contexts = _prompts(group, mode)
            answer = await client.post(
                f"{url}/v1/completions",
                json={
                    "model": "radixflow-demo",
                    "prompt": prompts,
                    "max_tokens": 1,
                    "temperature": 0,
                    "cache_salt": salt,
                    # Enough of the row to find both labels in.
                    "logprobs": 20 if mode == "label" else 1,
                    "echo": mode == "likelihood",
                },
            )
            if answer.status_code != 200:
                raise BenchmarkError(f"/v1/completions answered {answer.text[:300]}")
            body = answer.json()
            choices = sorted(body["choices"], key=lambda choice: choice["index"])
            read = [
                _read_choice(choice["logprobs"], context, mode)
                for choice, context in zip(choices, contexts, strict=True)
            ]
            known = tuple(value for value in read if value is not None)
            return Answer(
                known if len(known) == len(read) else None,
                body["usage"]["prompt_tokens"],
                time.monotonic() - began,
            )

        return await asyncio.gather(*map(ask, groups))


def _prompts(group: Group, mode: str) -> tuple[list[str], list[int]]:
    question, options = group.question.question, group.question.options
    if mode == "label":
        prompts = [label_prompt(group.document, question, o) for o in options]
        return prompts, [len(prompt) for prompt in prompts]
    context = likelihood_prompt(group.document, question)
    return [f"{context} {option}" for option in options], [len(context)] * len(options)


def _read_choice(rows: dict[str, Any], context: int, mode: str) -> float | None:
    if mode == "label":
        found: float | None = rows["top_logprobs"][0].get(" yes")
        return found
    pairs = list(zip(rows["text_offset"], rows["token_logprobs"], strict=True))[:-1]
    return sum(value for offset, value in pairs if offset >= context)


def run(servers: dict[str, Server], arm: str, mode: str, groups: list[Group]) -> Any:
    """One arm on one load, from idle to idle."""
    server = servers["stock" if arm.startswith("stock") else "radixflow"]
    if not arm.startswith("stock"):
        server.switch(arm)
    send = through_completions if arm == "stock" else through_endpoint
    mark = server.mark()
    began = time.monotonic()
    answers = asyncio.run(send(server.url, groups, mode, f"run-{uuid.uuid4().hex}"))
    wall = time.monotonic() - began
    rounds = server.rounds_since(mark)
    rows = [len(noted["rows"]) for noted in rounds]
    tokens = sum(count for noted in rounds for _, count in noted["rows"])
    prompt = sum(answer.prompt_tokens for answer in answers)
    readable = [
        (answer.scores, group.question.gold)
        for answer, group in zip(answers, groups, strict=True)
        if answer.scores is not None
    ]
    right = sum(scores.index(max(scores)) == gold for scores, gold in readable)
    return {
        "rounds": len(rounds),
        "rows_a_round": sum(rows) / len(rows),
        "scheduled_tokens": tokens,
        "prompt_tokens": prompt,
        "reuse": 1 - tokens / prompt,
        "wall_s": wall,
        "mean_group_s": sum(answer.seconds for answer in answers) / len(answers),
        "right": right if len(readable) == len(groups) else None,
        "groups": len(groups),
        "rows_by_round": rows,
        "tokens_by_round": [
            sum(count for _, count in noted["rows"]) for noted in rounds
        ],
        "scores": [answer.scores for answer in answers],
    }


# --- all runs -------------------------------------------------------------------------


def measure(quick: bool, repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every arm, load and mode, `repeats` times, interleaved."""
    work = loads(quick)
    modes = list(ARMS)
    todo = [
        (repeat, mode, load, arm)
        for repeat, mode, load in itertools.product(range(repeats), modes, work)
        for arm in ARMS[mode]
    ]
    raw: list[dict[str, Any]] = []
    with (
        Progress(
            TextColumn("{task.description:<44}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        ) as progress,
        Server("StockScheduler") as stock,
        Server("NotedRadixFlowScheduler") as ours,
    ):
        bar = progress.add_task("starting two servers", total=len(todo))
        servers = {"stock": stock, "radixflow": ours}
        for server in servers.values():
            server.wait()
        settings = {name: server.settings() for name, server in servers.items()}
        for arm, mode in (("stock", "label"), (OURS, "likelihood")):
            run(servers, arm, mode, next(iter(work.values()))[:2])  # first-use costs
        for repeat, mode, load, arm in todo:
            progress.update(bar, description=f"{mode} · {load} · {arm} · {repeat + 1}")
            seen = run(servers, arm, mode, work[load])
            raw.append(
                {"repeat": repeat, "mode": mode, "load": load, "arm": arm, **seen}
            )
            progress.advance(bar)
            if not progress.console.is_terminal:
                print(f"{mode}, {load}, {arm}: {seen['rounds']} rounds", flush=True)
    return raw, settings


FIGURES = ("rounds", "rows_a_round", "scheduled_tokens", "reuse", "wall_s")


def summarise(raw: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median, least and most of each figure for each mode, load and arm."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for seen in raw:
        cells.setdefault((seen["mode"], seen["load"], seen["arm"]), []).append(seen)
    return [
        {"mode": mode, "load": load, "arm": arm, "groups": seen[0]["groups"]}
        | {"right": [one["right"] for one in seen]}
        | {figure: spread([one[figure] for one in seen]) for figure in FIGURES}
        for (mode, load, arm), seen in cells.items()
    ]


def claims(
    raw: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]]
) -> list[Claim]:
    """What is claimed of the run, with its targets."""
    medians = {
        (cell["mode"], cell["load"], cell["arm"]): {
            figure: cell[figure]["median"] for figure in FIGURES
        }
        for cell in summary
    }
    found: list[Claim] = []
    for (mode, load, arm), ours in medians.items():
        if arm != OURS:
            continue
        for other in (name for name in ARMS[mode] if name in COMPARED):
            theirs = medians[mode, load, other]
            for figure in COMPARED[other]:
                ratio = round(ours[figure] / theirs[figure], 3)
                name = f"{mode}, {load}: {NAMES[figure]} of {OURS} / {other}"
                op = "<=" if figure == "scheduled_tokens" else "<"
                found.append(Claim(name, ratio, "ratio", 1, op))
    found += [
        Claim(
            f"likelihood, {load}: largest difference from recomputed scores",
            round(largest_difference(raw, load, OURS), 4),
            "nat",
            0.1,
            "<=",
        )
        for mode, load, arm in medians
        if (mode, arm) == ("likelihood", OURS)
    ]
    return found


COMPARED = {
    "stock": ("rounds", "scheduled_tokens", "wall_s"),
    "radix": ("rounds", "scheduled_tokens"),
    "radixflow": ("rounds", "scheduled_tokens"),
}
NAMES = {"rounds": "rounds", "scheduled_tokens": "tokens", "wall_s": "wall time"}


def largest_difference(raw: Sequence[dict[str, Any]], load: str, arm: str) -> float:
    """Between any run of an arm and any run that recomputed everything, in nats."""

    def runs(arm: str) -> list[list[float]]:
        return [
            [score for scores in seen["scores"] for score in scores]
            for seen in raw
            if (seen["mode"], seen["load"], seen["arm"]) == ("likelihood", load, arm)
        ]

    return max(
        abs(one - other)
        for cached, fresh in itertools.product(runs(arm), runs("stock"))
        for one, other in zip(cached, fresh, strict=True)
    )


def differences(raw: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each load and arm; of ``stock`` it is that of two runs which recompute."""
    return {
        load: {
            arm: round(largest_difference(raw, load, arm), 4)
            for arm in ARMS["likelihood"]
        }
        for load in dict.fromkeys(seen["load"] for seen in raw)
    }


def show(console: Console, summary: Sequence[dict[str, Any]]) -> None:
    """The summary as a table: median (least to most)."""
    table = Table("mode", "load", "arm", "rounds", "rows a round", "tokens", "reuse")
    table.add_column("wall, s")
    table.add_column("right")
    for cell in summary:
        table.add_row(
            cell["mode"],
            f"{cell['load']} ({cell['groups']} x 4)",
            cell["arm"],
            _shown(cell["rounds"], "{:.0f}"),
            _shown(cell["rows_a_round"], "{:.2f}"),
            _shown(cell["scheduled_tokens"], "{:,.0f}"),
            _shown(cell["reuse"], "{:.1%}"),
            _shown(cell["wall_s"], "{:.1f}"),
            "/".join("?" if one is None else str(one) for one in set(cell["right"])),
        )
    console.print(table)


def _shown(values: dict[str, float], form: str) -> str:
    median, least, most = (form.format(values[k]) for k in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def main() -> int:
    """Measure, show, write; 0 also when a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small load, once")
    parser.add_argument("--repeats", type=int, default=3, help="runs an arm")
    parser.add_argument("--name", help="of the results file")
    chosen = parser.parse_args()
    repeats = 1 if chosen.quick else chosen.repeats
    # Ended from outside, the servers must end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        raw, settings = measure(chosen.quick, repeats)
    except (BenchmarkError, RadixFlowError, httpx.HTTPError) as error:
        print(f"end_to_end: {error}", file=sys.stderr)
        return 1
    summary = summarise(raw)
    found = claims(raw, summary)
    path = write_results(
        chosen.name or ("end_to_end_quick" if chosen.quick else "end_to_end"),
        command="python benchmarks/end_to_end.py" + " --quick" * chosen.quick,
        raw=raw,
        claims=found,
        settings=settings,
        summary=summary,
        differences_nat=differences(raw),
        note="Wall time on this machine is set by the CPU kernels and by what else "
        "runs there; rounds and tokens are not.",
    )
    show(console, summary)
    show_claims(found)
    print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
