"""Prompts that form trees: tokens, rounds and latency in three schedules.

    python -m benchmarks.trees             # everything, about 25 minutes
    python -m benchmarks.trees --quick     # three loads, all at once, one repeat

Arms: ``stock`` (vLLM's own scheduler class), ``radix`` (vLLM's order on our scheduler)
and ``radixflow+``. Each run has a cache namespace of its own. The loads are those of
`_trees`; `limit16` is what full attention with 16-token blocks computes for them.

Ways in: ``branches`` (the SDK and ``/v1/branches``, likelihoods; documents in parts),
``labels`` (the same with label scoring), ``completions`` and ``chat`` (the OpenAI
client, no hints, one request a prompt), ``lm-eval generate`` (``local-completions`` as
it is) and ``lm-eval likelihood`` (our model). A stock scheduler recomputes the prompt
of every likelihood, so ``stock`` takes part in the ways without hints only.

Arrivals: ``together``; ``backlog`` (together, the engine is paused until all are in;
without ``stock``, whose queue cannot be read); ``in turn`` (one group after another);
``poisson 0.4``, ``0.7`` and ``1``, where 1 is the rate at which ``radix`` completes the
groups that arrive together; ``one by one`` (one request at a time). All arms get the
same arrival times.

`before` in the results file holds the figures of the commit before the prefix tree,
measured with ``--as-before``; later runs keep them. Their latencies are scaled by how
much faster or slower the machine is now: by the median, over the ways without hints, of
what ``radix`` takes now to what it took then.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shlex
import signal
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from openai import AsyncOpenAI, OpenAIError
from rich.console import Console
from rich.table import Table

from benchmarks._harness import (
    RESULTS,
    BenchmarkError,
    Claim,
    Server,
    commit,
    show_claims,
    spread,
    write_results,
)
from benchmarks._trees import LOADS, Group, chats, encode, limit16, make_load
from radixflow_sdk import RadixFlowClient, RadixFlowError, Template, Timeouts
from radixflow_sdk.evals.harness import RadixFlowLM
from server_ext.demo import CHECKPOINT

MODEL = "radixflow-demo"
SECONDS = 600.0
STOCK, NATIVE, OURS = "stock", "radix", "radixflow+"
HINTED = ("branches", "labels")
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}
"""vLLM's routes for development: /pause and /resume."""
LABELS = (" yes", " no")
VERBATIM = Template(
    before_question="",
    after_question="",
    before_option="",
)
LABEL_IDS = [token for label in LABELS for token in encode(label)]
POISSON = {"poisson 0.4": 0.4, "poisson 0.7": 0.7, "poisson 1": 1.0}
TOGETHER, BACKLOG, IN_TURN = "together", "backlog", "in turn"
ONE_BY_ONE = "one by one"
ARRIVALS = (TOGETHER, BACKLOG, IN_TURN, *POISSON, ONE_BY_ONE)
LM_EVAL = ("lm-eval generate", "lm-eval likelihood")

Values = Mapping[str, float]
"""Log-probabilities of one prompt, by token or by position."""
Answers = dict[str, Values]
"""What each prompt came to, by its text."""
Send = Callable[[Group], Awaitable[Answers]]


@dataclass(frozen=True)
class Cell:
    """One load through one way in, arriving in one manner, under one schedule."""

    load: str
    way: str
    arrival: str
    arm: str

    def under(self, arm: str) -> Cell:
        """The same under another schedule."""
        return Cell(self.load, self.way, self.arrival, arm)

    def __str__(self) -> str:
        return f"{self.load}, {self.way}, {self.arrival}"


def cells(quick: bool) -> Iterator[Cell]:
    """All cells of one repeat; `together` comes first, it sets the Poisson rates."""
    loads = ("w2", "w5", "w6") if quick else tuple(LOADS)
    for load in loads:
        for arrival in (TOGETHER, BACKLOG) if quick else ARRIVALS:
            ways = ["branches"]
            if arrival in (TOGETHER, IN_TURN) and not quick:
                ways.append("labels")
            if load != "w2b":  # without hints it is w2
                ways.append("completions")
            for way in ways:
                for arm in _arms(way, arrival):
                    yield Cell(load, way, arrival, arm)
    if not quick:
        for arrival in ARRIVALS:
            for arm in _arms("chat", arrival):
                yield Cell("chat", "chat", arrival, arm)
        for arm in (STOCK, NATIVE, OURS):
            yield Cell("w2", LM_EVAL[0], TOGETHER, arm)
        for arm in (NATIVE, OURS):
            yield Cell("w2", LM_EVAL[1], TOGETHER, arm)


def _arms(way: str, arrival: str) -> tuple[str, ...]:
    ours_alone = way in HINTED or arrival == BACKLOG
    return (NATIVE, OURS) if ours_alone else (STOCK, NATIVE, OURS)


@cache
def groups_of(load: str) -> tuple[Group, ...]:
    """The groups of a load; a chat is a group of one branch, its messages the parts."""
    if load == "chat":
        return tuple(Group(tuple(messages), "", ("",)) for messages in chats())
    return tuple(make_load(load))


def units_of(load: str, arrival: str) -> list[Group]:
    """What arrives at a time: a group, or one of its branches."""
    groups = groups_of(load)
    if arrival != ONE_BY_ONE:
        return list(groups)
    return [
        Group(group.parts, group.question, (option,))
        for group in groups[: -(-len(groups) // 2)]  # half of them: it takes long
        for option in group.options
    ]


# --- the ways in ----------------------------------------------------------------------


@asynccontextmanager
async def branches(url: str, salt: str, way: str) -> Any:
    """Through the SDK."""
    async with RadixFlowClient(
        url,
        route="branches",
        model=MODEL,
        max_connections=256,
        cache_salt=salt,
        timeout=Timeouts(total=SECONDS),
    ) as client:

        async def send(group: Group) -> Answers:
            result = await client.score_candidates(
                list(group.parts),
                group.options,
                question=group.question or None,
                template=VERBATIM,
                scoring="label" if way == "labels" else "likelihood",
                labels=LABELS if way == "labels" else None,
            )
            return {
                group.context + group.options[candidate.index]: (
                    {str(one.label): one.logprob for one in candidate.labels}
                    if candidate.labels is not None
                    else {
                        str(place): token.logprob
                        for place, token in enumerate(candidate.tokens)
                    }
                )
                for candidate in result.candidates
            }

        yield send


@asynccontextmanager
async def openai(url: str, salt: str, way: str) -> Any:
    """Through the OpenAI client, one request a prompt."""
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", timeout=SECONDS
    ) as client:

        async def complete(prompt: str) -> Values:
            answer = await client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=1,
                temperature=0,
                logprobs=5,
                extra_body={"cache_salt": salt},
            )
            rows: Any = answer.choices[0].logprobs
            return dict(rows.top_logprobs[0])

        async def send(group: Group) -> Answers:
            prompts = group.prompts
            read = await asyncio.gather(*map(complete, prompts))
            return dict(zip(prompts, read, strict=True))

        async def chat(group: Group) -> Answers:
            answer = await client.chat.completions.create(
                model=MODEL,
                messages=_messages(group),
                max_completion_tokens=4,
                temperature=0,
                logprobs=True,
                top_logprobs=5,
                extra_body={"cache_salt": salt},
            )
            rows: Any = answer.choices[0].logprobs
            first = rows.content[0].top_logprobs
            return {group.context: {one.token: one.logprob for one in first}}

        yield chat if way == "chat" else send


def _messages(group: Group) -> Any:
    roles = itertools.cycle(("user", "assistant"))
    system, *turns = group.parts
    return [
        {"role": "system", "content": system},
        *({"role": next(roles), "content": text} for text in turns),
    ]


def way_in(way: str, url: str, salt: str) -> AbstractAsyncContextManager[Send]:
    """The sender of a way in."""
    found: AbstractAsyncContextManager[Send]
    found = branches(url, salt, way) if way in HINTED else openai(url, salt, way)
    return found


def lm_eval(url: str, way: str, salt: str, groups: Sequence[Group]) -> Answers:
    """lm-eval's requests on a load; the salt rides where its clients let it."""
    shared: dict[str, Any] = {
        "model": MODEL,
        "tokenizer": str(CHECKPOINT),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 64,
        "max_length": 4096,
        "timeout": int(SECONDS),
    }
    if way == "lm-eval generate":
        model = LocalCompletionsAPI(base_url=f"{url}/v1/completions", **shared)
        settings = {"until": ["\n"], "max_gen_toks": 4, "cache_salt": salt}
        model.generate_until(
            [
                Instance("generate_until", {}, (group.context, dict(settings)), 0)
                for group in groups
            ],
            disable_tqdm=True,
        )
        return {}
    model = RadixFlowLM(base_url=url, cache_salt=salt, **shared)
    model.loglikelihood(
        [
            Instance("loglikelihood", {}, (group.context, option), index)
            for group in groups
            for index, option in enumerate(group.options)
        ],
        disable_tqdm=True,
    )
    return {}


# --- arrivals -------------------------------------------------------------------------


@asynccontextmanager
async def paused(url: str) -> AsyncIterator[None]:
    """Pause the engine; resume it when the number of waiting requests stays."""
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
        (await http.post("/pause", params={"mode": "keep"})).raise_for_status()
        try:
            yield
            waiting, seen = 0, -1
            while not waiting or waiting != seen:
                await asyncio.sleep(0.5)
                stats = (await http.get("/v1/radixflow/stats")).raise_for_status()
                waiting, seen = stats.json()["gauges"]["waiting"], waiting
        finally:
            (await http.post("/resume")).raise_for_status()


async def arrive(
    url: str, units: Sequence[Group], arrival: str, gap: float, send: Send
) -> tuple[list[Answers], list[float]]:
    """Send every unit when it arrives; the answers and the latencies.

    Args:
        url: the server's.
        units: what arrives.
        arrival: one of `ARRIVALS`.
        gap: mean seconds between two arrivals at Poisson load 1.
        send: the way in.
    """

    async def timed(unit: Group, after: float = 0.0) -> tuple[Answers, float]:
        if after:
            await asyncio.sleep(after)
        began = time.monotonic()
        answers = await send(unit)
        return answers, time.monotonic() - began

    if arrival in (IN_TURN, ONE_BY_ONE):
        done = [await timed(unit) for unit in units]
    elif arrival == BACKLOG:
        async with paused(url):
            tasks = [asyncio.create_task(timed(unit)) for unit in units]
        done = list(await asyncio.gather(*tasks))
    else:
        gaps = random.Random(1)
        load = POISSON.get(arrival)
        times = itertools.accumulate(gaps.expovariate(1) for _ in units)
        after = [0.0 if load is None else at * gap / load for at in times]
        done = list(await asyncio.gather(*map(timed, units, after)))
    return [answers for answers, _ in done], [seconds for _, seconds in done]


# --- one run --------------------------------------------------------------------------


def computed(rounds: Sequence[Mapping[str, Any]]) -> int:
    """Prompt tokens that the rounds computed: all tokens but those of decoding."""
    left: dict[str, int] = {}
    total = 0
    for noted in rounds:
        left.update({name: size - hit for name, size, hit in noted["admitted"]})
        for name, tokens in noted["rows"]:
            if left.get(name, 1) > 0 or tokens > 1:
                total += tokens
            left[name] = left.get(name, tokens) - tokens
    return total


class Bench:
    """The servers, and what was learned of them so far."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._servers = servers
        self._policy = ""
        self._gaps: dict[tuple[str, str], float] = {}
        self._limits: dict[tuple[str, str, bool], int] = {}
        self.reference: dict[tuple[str, str], Values] = {}

    def run(self, cell: Cell) -> dict[str, Any]:
        """One cell, from idle to idle."""
        server = self._server(cell.arm)
        salt, mark = f"run-{uuid.uuid4().hex}", server.mark()
        began = time.monotonic()
        units = units_of(cell.load, cell.arrival)
        answers: list[Answers] = []
        if cell.way in LM_EVAL:
            lm_eval(server.url, cell.way, salt, units)
            seconds = [time.monotonic() - began]
        else:
            gap = self._gaps.get((cell.load, cell.way), 0.0)

            async def run() -> tuple[list[Answers], list[float]]:
                async with way_in(cell.way, server.url, salt) as send:
                    return await arrive(server.url, units, cell.arrival, gap, send)

            answers, seconds = asyncio.run(run())
        wall = time.monotonic() - began
        rounds = server.rounds_since(mark)
        if (cell.arm, cell.arrival) == (NATIVE, TOGETHER):
            self._gaps.setdefault((cell.load, cell.way), wall / len(units))
        tokens, limit = computed(rounds), self._limit(cell)
        seconds.sort()
        return {
            "tokens": tokens,
            "limit16": limit,
            "ratio": tokens / limit,
            "rounds": len(rounds),
            "wall_s": round(wall, 3),
            "mean_s": round(sum(seconds) / len(seconds), 4),
            "p99_s": round(seconds[(len(seconds) - 1) * 99 // 100], 4),
            **self._differences(cell.way, answers),
        }

    def _server(self, arm: str) -> Server:
        if arm == STOCK:
            return self._servers[STOCK]
        if arm != self._policy:
            self._servers[OURS].switch(arm)
            self._policy = arm
        return self._servers[OURS]

    def _limit(self, cell: Cell) -> int:
        key = (cell.load, cell.way, cell.arrival == ONE_BY_ONE)
        if key not in self._limits:
            self._limits[key] = limit16(self._prompts(cell))
        return self._limits[key]

    def _prompts(self, cell: Cell) -> Iterator[Sequence[int]]:
        for unit in units_of(cell.load, cell.arrival):
            if cell.way == "chat":
                body = {"model": MODEL, "messages": _messages(unit)}
                answer = httpx.post(f"{self._servers[OURS].url}/tokenize", json=body)
                yield answer.raise_for_status().json()["tokens"]
            elif cell.way == "lm-eval generate":
                yield encode(unit.context)
            else:
                yield from map(encode, unit.prompts)

    # -- exactness -------------------------------------------------------------

    def refer(self, load: str) -> None:
        """Ask for a load's values without the cache."""
        asyncio.run(self._refer(load))

    async def _refer(self, load: str) -> None:
        limit = asyncio.Semaphore(8)
        timeout = httpx.Timeout(SECONDS)
        url = self._servers[OURS].url
        async with httpx.AsyncClient(base_url=url, timeout=timeout) as http:

            async def ask(path: str, **fields: Any) -> Any:
                # A namespace of its own: nothing that it could reuse.
                body = {"model": MODEL, "cache_salt": uuid.uuid4().hex, **fields}
                async with limit:
                    answer = await http.post(path, json=body)
                if answer.status_code != 200:
                    raise BenchmarkError(f"{path} answered {answer.text[:300]}")
                return answer.json()["choices"][0]["logprobs"]

            async def prompt(group: Group, text: str) -> None:
                one = {"prompt": text, "max_tokens": 1, "temperature": 0}
                rows = await ask("/v1/completions", **one, echo=True, logprobs=5)
                scored = len(encode(group.context))
                likelihoods = rows["token_logprobs"][scored:-1]
                self.reference["branches", text] = {
                    str(place): value for place, value in enumerate(likelihoods)
                }
                self.reference["completions", text] = rows["top_logprobs"][-1]
                read = {"logprobs": 1, "logprob_token_ids": LABEL_IDS}
                rows = await ask("/v1/completions", **one, **read)
                self.reference["labels", text] = {
                    label: rows["top_logprobs"][0][label] for label in LABELS
                }

            async def chat(group: Group) -> None:
                rows = await ask(
                    "/v1/chat/completions",
                    messages=_messages(group),
                    max_tokens=1,
                    temperature=0,
                    logprobs=True,
                    top_logprobs=5,
                )
                first = rows["content"][0]["top_logprobs"]
                self.reference["chat", group.context] = {
                    one["token"]: one["logprob"] for one in first
                }

            await asyncio.gather(
                *(
                    chat(group) if load == "chat" else prompt(group, text)
                    for group in groups_of(load)
                    for text in group.prompts
                )
            )

    def _differences(self, way: str, answers: Sequence[Answers]) -> dict[str, float]:
        """Largest differences from the uncached values: of a token and of a score."""
        tokens, scores = [0.0], [0.0]
        for text, values in itertools.chain.from_iterable(a.items() for a in answers):
            expected = self.reference[way, text]
            apart = [
                values[one] - expected[one] for one in values.keys() & expected.keys()
            ]
            if not apart:
                raise BenchmarkError(f"{way} and its reference have no token in common")
            furthest = max(map(abs, apart))
            tokens.append(furthest)
            scores.append(abs(sum(apart)) if way == "branches" else furthest)
        return {
            "token_difference_nat": round(max(tokens), 4),
            "score_difference_nat": round(max(scores), 4),
        }


# --- all runs -------------------------------------------------------------------------


def measure(
    work: Sequence[Cell], repeats: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every cell once, then those that arrive together again, arms interleaved."""
    raw: list[dict[str, Any]] = []
    with ExitStack() as stack:
        servers = {
            OURS: stack.enter_context(Server("NotedRadixFlowScheduler", **DEVELOPMENT))
        }
        if any(cell.arm == STOCK for cell in work):
            servers[STOCK] = stack.enter_context(Server("StockScheduler"))
        for server in servers.values():
            server.wait()
        bench = Bench(servers)
        for load in dict.fromkeys(cell.load for cell in work):
            bench.refer(load)
        for cell in work[:6]:  # first-use costs
            bench.run(cell)
        for repeat in range(repeats):
            for cell in work:
                if repeat and cell.arrival != TOGETHER:
                    continue
                seen = {"repeat": repeat, **vars(cell), **bench.run(cell)}
                raw.append(seen)
                print(
                    f"{cell}, {cell.arm}: x {seen['ratio']:.2f}, {seen['rounds']} "
                    f"rounds, mean {seen['mean_s']:.3f} s, wall {seen['wall_s']:.1f} s",
                    flush=True,
                )
        return raw, {name: server.settings() for name, server in servers.items()}


FIGURES = ("tokens", "ratio", "rounds", "wall_s", "mean_s", "p99_s")
DIFFERENCES = ("token_difference_nat", "score_difference_nat")


def summarise(raw: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median, least and most of each cell's figures; the largest differences."""
    runs: dict[Cell, list[dict[str, Any]]] = defaultdict(list)
    for seen in raw:
        cell = Cell(*(seen[name] for name in ("load", "way", "arrival", "arm")))
        runs[cell].append(seen)
    return [
        {**vars(cell), "limit16": seen[0]["limit16"]}
        | {figure: spread([one[figure] for one in seen]) for figure in FIGURES}
        | {figure: max(one[figure] for one in seen) for figure in DIFFERENCES}
        for cell, seen in runs.items()
    ]


Medians = dict[Cell, dict[str, float]]


def medians(summary: Sequence[Mapping[str, Any]]) -> Medians:
    """The medians of each cell."""
    return {
        Cell(*(one[name] for name in ("load", "way", "arrival", "arm"))): {
            figure: one[figure]["median"] for figure in FIGURES
        }
        | {figure: one[figure] for figure in DIFFERENCES}
        for one in summary
    }


def claims(seen: Medians, before: Medians) -> list[Claim]:
    """What is claimed of the run, with its targets."""
    ours = {cell: figures for cell, figures in seen.items() if cell.arm == OURS}
    return [
        *_limits(ours),
        *_rounds(ours, seen, before),
        *_regressions(ours, seen, before),
        *_exact(ours),
    ]


def _limits(ours: Medians) -> Iterator[Claim]:
    for cell, figures in ours.items():
        target = None
        if cell.arrival in (TOGETHER, BACKLOG):
            # The scored row caps the hit: a passage's first row is computed again.
            target = 1.07 if (cell.load, cell.way) == ("w4", "branches") else 1.05
        elif (cell.arrival, cell.way) == (IN_TURN, "branches"):
            target = 1.10
        if target is not None:
            value = round(figures["ratio"], 3)
            yield Claim(f"{cell}: tokens / limit16", value, "x", target, "<=")


def _rounds(ours: Medians, seen: Medians, before: Medians) -> Iterator[Claim]:
    for cell, figures in ours.items():
        if cell.arrival != TOGETHER:
            continue
        if cell in before:
            ratio = round(figures["rounds"] / before[cell]["rounds"], 3)
            yield Claim(f"{cell}: rounds / before", ratio, "x", 1.0, "<=")
        if cell.way == "completions" and cell.under(STOCK) in seen:
            ratio = round(figures["rounds"] / seen[cell.under(STOCK)]["rounds"], 3)
            yield Claim(f"{cell}: rounds / stock", ratio, "x", 0.5, "<=")


def _regressions(ours: Medians, seen: Medians, before: Medians) -> Iterator[Claim]:
    """A count for each way and arrival; a claim of its own for each cell that is worse.

    Latency is held to the better of the native order and `before`.
    """
    speed = _speed(seen, before)
    by_kind: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in ours:
        by_kind[cell.way, cell.arrival].append(cell)
    for (way, arrival), found in by_kind.items():
        worse: dict[str, list[Claim]] = {"tokens": [], "mean latency": []}
        for cell in found:
            native = seen[cell.under(NATIVE)]
            tokens = round(ours[cell]["tokens"] / native["tokens"], 3)
            name = f"{cell}: tokens / native"
            worse["tokens"].append(Claim(name, tokens, "x", 1.0, "<="))
            best = native["mean_s"]
            if cell in before:
                best = min(best, before[cell]["mean_s"] * speed)
            latency = round(ours[cell]["mean_s"] / best, 3)
            name = f"{cell}: mean latency / the better of native and before"
            worse["mean latency"].append(Claim(name, latency, "x", 1.0, "<="))
        if arrival == BACKLOG:  # its latency is mostly the pause
            del worse["mean latency"]
        for figure, compared in worse.items():
            missed = [claim for claim in compared if not claim.met]
            name = f"{way}, {arrival}: loads with more {figure}"
            yield Claim(name, len(missed), f"of {len(found)}", 0, "<=")
            yield from missed


def _speed(seen: Medians, before: Medians) -> float:
    """What the machine takes now to what it took for `before`."""
    ratios = [
        figures["mean_s"] / before[cell]["mean_s"]
        for cell, figures in seen.items()
        if cell.arm == NATIVE and cell in before and cell.way not in HINTED
    ]
    return statistics.median(ratios) if ratios else 1.0


def _exact(ours: Medians) -> Iterator[Claim]:
    for way in dict.fromkeys(cell.way for cell in ours):
        if way in LM_EVAL:
            continue
        found = [figures for cell, figures in ours.items() if cell.way == way]
        for figure, what in zip(DIFFERENCES, ("a token", "a score"), strict=True):
            name = f"{way}: largest difference of {what} from an uncached run"
            value = max(figures[figure] for figures in found)
            yield Claim(name, value, "nat", 0.1, "<=")


def kept_before() -> dict[str, Any] | None:
    """The figures of before the tree, from the results file."""
    path = RESULTS / "trees.json"
    if not path.exists():
        return None
    found: dict[str, Any] | None = json.loads(path.read_text("utf-8")).get("before")
    return found


def show(console: Console, summary: Sequence[Mapping[str, Any]]) -> None:
    """A line for each load, way in and arrival; native / stock / ours."""
    table = Table("load", "way", "arrival", "arm", "x limit16", "rounds", "mean, s")
    for one in summary:
        table.add_row(
            *(one[name] for name in ("load", "way", "arrival", "arm")),
            f"{one['ratio']['median']:.2f}",
            f"{one['rounds']['median']:.0f}",
            f"{one['mean_s']['median']:.3f}",
        )
    console.print(table)


def main() -> int:
    """Measure, show, write; 0 also when a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three loads, once")
    parser.add_argument("--repeats", type=int, default=3, help="runs of `together`")
    parser.add_argument("--name", help="of the results file")
    parser.add_argument(
        "--as-before", action="store_true", help="keep the figures as `before`"
    )
    chosen = parser.parse_args()
    # Ended from outside, the servers must end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work = [
            c for c in cells(chosen.quick) if not chosen.as_before or c.arm != STOCK
        ]
        raw, settings = measure(work, 1 if chosen.quick else chosen.repeats)
    except (BenchmarkError, RadixFlowError, OpenAIError, httpx.HTTPError) as error:
        print(f"trees: {error}", file=sys.stderr)
        return 1
    summary = summarise(raw)
    before = kept_before()
    if chosen.as_before:
        before = {
            "commit": commit(),
            "summary": [one for one in summary if one["arm"] in (NATIVE, OURS)],
        }
    then = {} if before is None else medians(before["summary"])
    found = claims(medians(summary), then)
    path = write_results(
        chosen.name or ("trees_quick" if chosen.quick else "trees"),
        command=shlex.join(["python", "-m", "benchmarks.trees", *sys.argv[1:]]),
        raw=raw,
        claims=found,
        settings=settings,
        loads={name: what for name, (what, _) in LOADS.items()},
        before=before,
        summary=summary,
    )
    show(Console(width=None if sys.stdout.isatty() else 120), summary)
    show_claims(found)
    print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
