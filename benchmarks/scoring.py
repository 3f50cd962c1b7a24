"""Whole options scored six ways on one server: ours and what people use today.

    python benchmarks/scoring.py            # all of it, 3 repeats an arm
    python benchmarks/scoring.py --quick    # one small load once, for a test

One `radixflow serve demo`, the bundled hybrid model, documents that it never saw, each
run in a cache namespace of its own (all cold), every arm's requests sent at once:

* ``radixflow``: `score_candidates`, a group a question.
* ``lm-eval radixflow``: lm-evaluation-harness with our model, `loglikelihood`.
* ``lm-eval local-completions``: the same requests with lm-eval's own model for such a
  server: one ``POST /v1/completions`` an option, token ids, ``echo`` and ``logprobs``.
* ``openai echo``: the OpenAI client, a question's prompts as one list, ``echo`` and
  ``logprobs``.
* ``generative_scoring``: vLLM's ``POST /generative_scoring``, which reads the
  probability of one label after document, question and option: less than the others
  give, from cached prefixes, so the one to be level with.
* ``trie``: our client without our plug-in's route: one cached read of vLLM's own
  ``/v1/completions`` for each distinct beginning of an option.

Bytes are those of the answers to one question with four options on a document of about
3,000 tokens. Results: benchmarks/results/scoring.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._harness import (
    BenchmarkError,
    Claim,
    Server,
    show_claims,
    spread,
    write_results,
)
from examples.reading import MOST_FACTS, likelihood_prompt, make_document
from radixflow_sdk import RadixFlowClient, RadixFlowError, Timeouts
from radixflow_sdk.evals.harness import RadixFlowLM
from server_ext.demo import CHECKPOINT

MODEL = "radixflow-demo"
SECONDS = 1200.0
TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@dataclass(frozen=True)
class Question:
    """One question with its document and options."""

    document: str
    question: str
    options: tuple[str, ...]

    @property
    def context(self) -> str:
        return likelihood_prompt(self.document, self.question)


Scores = list[list[float]] | None
"""Each question's options' log-likelihoods; None where an arm has none."""


def loads(quick: bool) -> dict[str, list[Question]]:
    """The named loads."""
    if quick:
        return {"quick": list(_questions([20, 30], questions=2, options=4, seed=7))}
    # About 17.7 tokens a fact and its filler: 600 to 1,500 tokens.
    ten = [34 + round(51 * step / 9) for step in range(10)]
    twenty = [34 + round(51 * step / 19) for step in range(20)]
    return {
        "four a document": list(_questions(ten, questions=4, options=4, seed=1)),
        "one a document": list(_questions(twenty, questions=1, options=4, seed=2)),
        "16 options": list(_questions(ten[::3], questions=1, options=16, seed=3)),
        "64 options": list(_questions(ten[4:5], questions=1, options=64, seed=4)),
    }


def _questions(
    facts: Sequence[int], *, questions: int, options: int, seed: int
) -> Iterator[Question]:
    others = list(_other_options(options, seed))
    for place, count in enumerate(facts):
        stated = min(count, MOST_FACTS)
        document = make_document(
            seed=8_000_000 + 1000 * seed + place,
            facts=stated,
            questions=questions,
            filler=(2 * count - stated) / stated,
            held_out=True,
        )
        for asked in document.questions:
            texts = dict.fromkeys([*asked.options, *others])
            yield Question(document.text, asked.question, tuple(texts)[:options])


def _other_options(most: int, seed: int) -> Iterator[str]:
    """Enough further texts of the model's world."""
    for place in range(most):
        document = make_document(
            seed=8_500_000 + 1000 * seed + place, facts=8, questions=4, held_out=True
        )
        for asked in document.questions:
            yield from asked.options


# --- the arms -------------------------------------------------------------------------


async def radixflow(
    url: str,
    questions: Sequence[Question],
    salt: str,
    route: Literal["branches", "trie"] = "branches",
) -> Scores:
    """Groups through our client."""
    async with RadixFlowClient(
        url,
        route=route,
        model=MODEL,
        max_connections=len(questions),
        cache_salt=salt,
        timeout=Timeouts(total=SECONDS),
    ) as client:

        async def ask(one: Question) -> list[float]:
            result = await client.score_candidates(
                one.document, one.options, question=one.question
            )
            given = sorted(result.candidates, key=lambda candidate: candidate.index)
            return [candidate.score for candidate in given]

        return await asyncio.gather(*map(ask, questions))


async def openai_echo(url: str, questions: Sequence[Question], salt: str) -> Scores:
    """All prompts of a question in one call of the OpenAI client."""
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", timeout=SECONDS, max_retries=0
    ) as client:

        async def ask(one: Question) -> list[float]:
            answer = await client.completions.create(
                model=MODEL,
                prompt=[f"{one.context} {option}" for option in one.options],
                max_tokens=1,
                temperature=0,
                echo=True,
                logprobs=1,
                extra_body={"cache_salt": salt},
            )
            choices = sorted(answer.choices, key=lambda choice: choice.index)
            return [_sum(choice.logprobs, len(one.context)) for choice in choices]

        return await asyncio.gather(*map(ask, questions))


def _sum(rows: Any, context: int) -> float:
    pairs = list(zip(rows.text_offset, rows.token_logprobs, strict=True))[:-1]
    return sum(value for offset, value in pairs if offset >= context)


async def generative_scoring(
    url: str, questions: Sequence[Question], salt: str
) -> Scores:
    """One label after each option."""
    (label,) = TOKENIZER.encode(" yes", add_special_tokens=False).ids
    async with httpx.AsyncClient(timeout=SECONDS, limits=_all_at_once()) as client:

        async def ask(one: Question) -> None:
            answer = await client.post(
                f"{url}/generative_scoring",
                json={
                    "model": MODEL,
                    "query": f"{one.document}\n\nQuestion: {one.question}",
                    "items": [f"\nCandidate: {o}\nCorrect:" for o in one.options],
                    "label_token_ids": [label],
                    "apply_softmax": False,
                    "cache_salt": salt,
                },
            )
            if answer.status_code != 200:
                raise BenchmarkError(f"/generative_scoring: {answer.text[:300]}")

        await asyncio.gather(*map(ask, questions))
    return None


def _all_at_once() -> httpx.Limits:
    return httpx.Limits(max_connections=None)


def lm_eval_radixflow(url: str, questions: Sequence[Question], salt: str) -> Scores:
    """lm-eval's requests through our model."""
    return _lm_eval(RadixFlowLM(base_url=url, cache_salt=salt, **_SHARED), questions)


def lm_eval_local(url: str, questions: Sequence[Question], salt: str) -> Scores:
    """lm-eval's requests through its own model for such a server."""
    del salt  # with echo vLLM reads nothing from the cache
    lm = LocalCompletionsAPI(base_url=f"{url}/v1/completions", **_SHARED)
    return _lm_eval(lm, questions)


_SHARED: dict[str, Any] = {
    "model": MODEL,
    "tokenizer": str(CHECKPOINT),
    "tokenizer_backend": "huggingface",
    "num_concurrent": 64,
    "max_length": 4096,
    "timeout": int(SECONDS),
}


def _lm_eval(lm: Any, questions: Sequence[Question]) -> Scores:
    requests = [
        Instance("loglikelihood", {}, (one.context, f" {option}"), index)
        for one in questions
        for index, option in enumerate(one.options)
    ]
    answers = iter(lm.loglikelihood(requests, disable_tqdm=True))
    return [[next(answers)[0] for _ in one.options] for one in questions]


ARMS: dict[str, Callable[[str, Sequence[Question], str], Any]] = {
    "radixflow": radixflow,
    "trie": partial(radixflow, route="trie"),
    "lm-eval radixflow": lm_eval_radixflow,
    "lm-eval local-completions": lm_eval_local,
    "openai echo": openai_echo,
    "generative_scoring": generative_scoring,
}


def run(server: Server, arm: str, questions: Sequence[Question]) -> dict[str, Any]:
    """One arm on one load, from idle to idle."""
    mark, salt = server.mark(), f"run-{uuid.uuid4().hex}"
    began = time.monotonic()
    found = ARMS[arm](server.url, questions, salt)
    scores = asyncio.run(found) if asyncio.iscoroutine(found) else found
    wall = time.monotonic() - began
    rounds = server.rounds_since(mark)
    return {
        "questions": len(questions),
        "options": len(questions[0].options),
        "wall_s": wall,
        "rounds": len(rounds),
        "scheduled_tokens": sum(n for noted in rounds for _, n in noted["rows"]),
        "scores": scores,
    }


# --- bytes ----------------------------------------------------------------------------


def answer_bytes(server: Server) -> dict[str, int]:
    """Bytes of the answers about one long document."""
    (one,) = _questions([170], questions=1, options=4, seed=9)
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "radixflow": (
            "/v1/branches",
            {
                "document": {"text": one.document},
                "question": one.context.removeprefix(one.document),
                "branches": [{"text": f" {option}"} for option in one.options],
            },
        ),
        "echo": (
            "/v1/completions",
            {
                "model": MODEL,
                "prompt": [f"{one.context} {option}" for option in one.options],
                "max_tokens": 1,
                "temperature": 0,
                "echo": True,
                "logprobs": 1,
            },
        ),
    }
    found = {"document_tokens": len(TOKENIZER.encode(one.document).ids)}
    for name, (path, body) in bodies.items():
        answer = httpx.post(f"{server.url}{path}", json=body, timeout=SECONDS)
        answer.raise_for_status()
        found[name] = len(answer.content)
    return found


# --- all runs -------------------------------------------------------------------------


def measure(quick: bool, repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every arm and load, `repeats` times, interleaved, on one server."""
    work = loads(quick)
    raw: list[dict[str, Any]] = []
    with Server("NotedRadixFlowScheduler") as server:
        server.wait()
        for arm in ARMS:  # first-use costs
            run(server, arm, next(iter(work.values()))[:2])
        for repeat, load, arm in itertools.product(range(repeats), work, ARMS):
            seen = run(server, arm, work[load])
            raw.append({"repeat": repeat, "load": load, "arm": arm, **seen})
            print(f"{load}, {arm}: {seen['wall_s']:.2f} s", flush=True)
        return raw, {
            "settings": server.settings(),
            "answer_bytes": answer_bytes(server),
            "document_tokens": {
                load: spread([len(TOKENIZER.encode(q.document).ids) for q in questions])
                for load, questions in work.items()
            },
        }


FIGURES = ("wall_s", "rounds", "scheduled_tokens")


def summarise(raw: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median, least and most of each figure for each load and arm."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seen in raw:
        cells.setdefault((seen["load"], seen["arm"]), []).append(seen)
    return [
        {"load": load, "arm": arm}
        | {name: seen[0][name] for name in ("questions", "options")}
        | {figure: spread([one[figure] for one in seen]) for figure in FIGURES}
        for (load, arm), seen in cells.items()
    ]


TARGETS = {"four a document": 5.0, "one a document": 3.0}
PAIRS = (
    ("lm-eval radixflow", "lm-eval local-completions"),
    ("radixflow", "lm-eval local-completions"),
    ("radixflow", "openai echo"),
)


def claims(
    raw: Sequence[dict[str, Any]],
    summary: Sequence[dict[str, Any]],
    sizes: dict[str, int],
) -> list[Claim]:
    """What is claimed of the run, with its targets."""
    wall = {(c["load"], c["arm"]): c["wall_s"]["median"] for c in summary}

    def faster(load: str, ours: str, theirs: str) -> float:
        return round(wall[load, theirs] / wall[load, ours], 2)

    names = list(dict.fromkeys(load for load, _ in wall))
    found = [
        Claim(
            f"{load}: wall time of {theirs} / {ours}",
            faster(load, ours, theirs),
            "ratio",
            TARGETS.get(load, 1.0),
            ">=",
        )
        for load in names
        for ours, theirs in PAIRS
    ]
    found += [
        Claim(
            f"{load}: wall time of {theirs} / radixflow",
            faster(load, "radixflow", theirs),
            "ratio",
            1.0,
            ">=",
        )
        for load in names
        for theirs in ("generative_scoring", "trie")
    ]
    grows = ("one a document", "16 options", "64 options")
    for fewer, more in itertools.pairwise(n for n in grows if n in names):
        name = f"{more} / {fewer}: growth of openai echo / radixflow"
        pair = ("radixflow", "openai echo")
        ratio = faster(more, *pair) / faster(fewer, *pair)
        found.append(Claim(name, round(ratio, 2), "ratio", 1.0, ">"))
    found += [
        Claim(
            f"{load}: largest difference from recomputed scores",
            round(largest_difference(raw, load), 4),
            "nat",
            0.1,
            "<=",
        )
        for load in names
    ]
    found.append(
        Claim("bytes of a radixflow answer", sizes["radixflow"], "B", 10_000, "<")
    )
    return found


def largest_difference(raw: Sequence[dict[str, Any]], load: str) -> float:
    """Between our scores and any that were recomputed, in nats."""

    def runs(*arms: str) -> list[list[float]]:
        return [
            [score for scores in seen["scores"] for score in scores]
            for seen in raw
            if seen["load"] == load and seen["arm"] in arms
        ]

    ours = runs("radixflow", "trie", "lm-eval radixflow")
    theirs = runs("lm-eval local-completions", "openai echo")
    return max(
        abs(one - other)
        for cached, fresh in itertools.product(ours, theirs)
        for one, other in zip(cached, fresh, strict=True)
    )


def show(console: Console, summary: Sequence[dict[str, Any]]) -> None:
    """The summary as a table: median (least to most)."""
    table = Table("load", "arm", "wall, s", "rounds", "tokens")
    for cell in summary:
        wall = "{median:.2f} ({min:.2f} to {max:.2f})".format(**cell["wall_s"])
        table.add_row(
            f"{cell['load']} ({cell['questions']} x {cell['options']})",
            cell["arm"],
            wall,
            f"{cell['rounds']['median']:.0f}",
            f"{cell['scheduled_tokens']['median']:,.0f}",
        )
    console.print(table)


def main() -> int:
    """Measure, show, write; 0 also when a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small load, once")
    parser.add_argument("--repeats", type=int, default=3, help="runs an arm")
    parser.add_argument("--name", help="of the results file")
    chosen = parser.parse_args()
    # Ended from outside, the server must end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        raw, more = measure(chosen.quick, 1 if chosen.quick else chosen.repeats)
    except (BenchmarkError, RadixFlowError, httpx.HTTPError) as error:
        print(f"scoring: {error}", file=sys.stderr)
        return 1
    summary = summarise(raw)
    found = claims(raw, summary, more["answer_bytes"])
    path = write_results(
        chosen.name or ("scoring_quick" if chosen.quick else "scoring"),
        command="python benchmarks/scoring.py" + " --quick" * chosen.quick,
        raw=raw,
        claims=found,
        summary=summary,
        **more,
        note="One server, all arms cold. generative_scoring gives one label's "
        "probability an option, the others the likelihood of the whole option.",
    )
    show(Console(width=None if sys.stdout.isatty() else 120), summary)
    show_claims(found)
    print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
