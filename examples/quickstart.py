"""Score one document: RADIXFLOW_BASE_URL names the server (http://127.0.0.1:8000)."""

import asyncio

from radixflow_sdk import RadixFlowClient

DOCUMENT = (
    "The home of Anna is Port Alma. Boris left Kelso. At noon the shops were quiet."
)


async def main() -> None:
    async with RadixFlowClient() as client:
        result = await client.score_candidates(
            DOCUMENT,
            ["Kelso", "Port Alma", "Lake Alma"],
            question="What is the home of Anna?",
        )
    for candidate in result.candidates:
        print(f"{candidate.probability:6.1%}  {candidate.score:8.3f}  {candidate.text}")


if __name__ == "__main__":
    asyncio.run(main())
