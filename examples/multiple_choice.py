"""Accuracy on held-out questions under every normalizer, from one pass.

    radixflow serve demo &
    python examples/multiple_choice.py

RADIXFLOW_BASE_URL names the server (http://127.0.0.1:8000). For files of questions,
with intervals and calibration, there is ``radixflow eval`` (docs/evaluation.md).
"""

import asyncio
import json

from radixflow_sdk import RadixFlowClient, ScoreRequest
from server_ext.demo import HELD_OUT

DOCUMENTS = 6


async def main() -> None:
    """Ask every question once, then read the answers in several ways."""
    documents = json.loads(HELD_OUT.read_text(encoding="utf-8"))["documents"]
    asked = [
        (document["document"], question)
        for document in documents[:DOCUMENTS]
        for question in document["questions"]
    ]
    requests = [
        ScoreRequest(
            document=text,
            options=question["options"],
            question=question["question"],
            unconditional="Answer:",  # what pmi compares with
        )
        for text, question in asked
    ]
    async with RadixFlowClient() as client:
        outcomes = await client.score_all(requests, errors="raise")
    results = [outcome.unwrap() for outcome in outcomes]
    for name in ("sum", "mean", "char", "byte", "pmi"):
        right = sum(
            result.under(name).best.index == question["gold"]
            for result, (_, question) in zip(results, asked, strict=True)
        )
        print(f"{name:>5}: {right} of {len(asked)} right")
    usage = [result.usage for result in results]
    computed = sum(one.computed_tokens for one in usage)
    prompt = sum(one.prompt_tokens for one in usage)
    print(f"{computed:,} tokens computed of {prompt:,} in the prompts")


if __name__ == "__main__":
    asyncio.run(main())
