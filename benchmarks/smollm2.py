"""SmolLM2 on our server, held to transformers: every token of every option.

    python benchmarks/smollm2.py            # bfloat16 and float32, a server each

A server scores the excerpts' questions (tests/evals/data) with the checkpoint of
examples/smollm2.py, and each token's log-probability is compared with transformers in
float32 (smollm2_reference.json, written by tests/evals/make_smollm2_reference.py).
Results: benchmarks/results/smollm2.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._harness import (
    ROOT,
    BenchmarkError,
    Claim,
    Server,
    show_claims,
    write_results,
)
from examples.smollm2 import SERVER_FLAGS, cached_checkpoint
from radixflow_sdk import (
    RadixFlowClient,
    RadixFlowError,
    ScoreRequest,
    ScoreResult,
    Timeouts,
)

DATA = ROOT / "tests" / "evals" / "data"
FILES = ("musr", "pubmedqa", "xquad")
LIMITS = {"bfloat16": 0.25, "float32": 0.01}
"""Nats a token by which an option may differ, and any one token, too."""
AGREEMENT = 0.95
SECONDS = 1800.0


def questions() -> dict[str, ScoreRequest]:
    """The excerpts' questions by their names."""
    return {
        question["qid"]: ScoreRequest(
            document=row["document"],
            options=question["options"],
            question=question["question"],
        )
        for name in FILES
        for line in (DATA / f"{name}.jsonl").read_bytes().splitlines()
        for row in [json.loads(line)]
        for question in row["questions"]
    }


async def score(url: str, asked: Sequence[ScoreRequest]) -> list[ScoreResult]:
    """Every question, all documents cold."""
    async with RadixFlowClient(url, timeout=Timeouts(total=SECONDS)) as client:
        outcomes = await client.score_all(asked, errors="raise")
    return [outcome.unwrap() for outcome in outcomes]


def compare(result: ScoreResult, reference: list[Any]) -> dict[str, Any]:
    """One question's answer beside the reference's.

    Raises:
        BenchmarkError: the server scored other tokens.
    """
    given = sorted(result.candidates, key=lambda candidate: candidate.index)
    token_differences: list[float] = []
    sums: list[tuple[float, float]] = []
    rates: list[float] = []
    for candidate, (ids, logprobs) in zip(given, reference, strict=True):
        if list(candidate.token_ids) != ids:
            raise BenchmarkError(
                f"option {candidate.text!r} has the tokens {candidate.token_ids} on "
                f"the server and {ids} in the reference"
            )
        token_differences += [
            abs(token.logprob - wanted)
            for token, wanted in zip(candidate.tokens, logprobs, strict=True)
        ]
        sums.append((candidate.score, sum(logprobs)))
        rates.append(abs(candidate.score - sum(logprobs)) / len(ids))
    ours, theirs = zip(*sums, strict=True)
    return {
        "tokens": len(token_differences),
        "largest": round(max(token_differences), 5),
        "largest_rate": round(max(rates), 5),
        "mean": round(sum(token_differences) / len(token_differences), 5),
        "same_best": ours.index(max(ours)) == theirs.index(max(theirs)),
        "margin": round(max(theirs) - sorted(theirs)[-2], 5),
    }


def run(dtype: str) -> dict[str, Any]:
    """All questions on a server of one dtype."""
    text = (DATA / "smollm2_reference.json").read_text(encoding="utf-8")
    reference = json.loads(text)["options"]
    asked = questions()
    flags = [*SERVER_FLAGS, "--dtype", dtype]
    model = str(cached_checkpoint())
    with Server("NotedRadixFlowScheduler", flags, model) as server:
        server.wait(1200)
        began = time.monotonic()
        results = asyncio.run(score(server.url, list(asked.values())))
        wall = time.monotonic() - began
    compared = {
        qid: compare(result, reference[qid])
        for qid, result in zip(asked, results, strict=True)
    }
    cached = sum(result.usage.cached_tokens for result in results)
    prompt = sum(result.usage.prompt_tokens for result in results)
    tokens = sum(one["tokens"] for one in compared.values())
    total = sum(one["mean"] * one["tokens"] for one in compared.values())
    return {
        "dtype": dtype,
        "questions": len(compared),
        "tokens": tokens,
        "largest_nat": max(one["largest"] for one in compared.values()),
        "largest_rate": max(one["largest_rate"] for one in compared.values()),
        "mean_nat": round(total / tokens, 5),
        "same_best": sum(one["same_best"] for one in compared.values()),
        "cached": round(cached / prompt, 4),
        "wall_s": round(wall, 1),
        "by_question": compared,
    }


def claims(seen: dict[str, Any]) -> list[Claim]:
    """What is claimed of one dtype."""
    dtype = seen["dtype"]
    agreement = round(seen["same_best"] / seen["questions"], 4)
    return [
        Claim(
            f"{dtype}: largest difference of an option from transformers in float32",
            seen["largest_rate"],
            "nat a token",
            LIMITS[dtype],
            "<=",
        ),
        Claim(
            f"{dtype}: largest difference of any one token",
            seen["largest_nat"],
            "nat",
            LIMITS[dtype],
            "<=",
        ),
        Claim(
            f"{dtype}: questions with the same best option",
            agreement,
            "share",
            AGREEMENT,
            ">=",
        ),
    ]


def main() -> int:
    """Measure, write, show; 0 also when a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=list(LIMITS), help="only this one")
    parser.add_argument("--name", default="smollm2", help="of the results file")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        raw = [run(dtype) for dtype in LIMITS if chosen.dtype in (None, dtype)]
    except (BenchmarkError, RadixFlowError, httpx.HTTPError) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    found = [claim for seen in raw for claim in claims(seen)]
    command = "python benchmarks/smollm2.py"
    if chosen.dtype:
        command += f" --dtype {chosen.dtype}"
    path = write_results(chosen.name, command=command, raw=raw, claims=found)
    show_claims(found)
    print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
