"""Score one document: RADIXFLOW_BASE_URL names the server (http://127.0.0.1:8000)."""

import asyncio

from radixflow_sdk import RadixFlowClient

DOCUMENT = "Anna lives in Oslo. She works as a baker. Her brother Tom lives in Rome."


async def main() -> None:
    async with RadixFlowClient() as client:
        result = await client.score_candidates(
            DOCUMENT, ["Rome", "Oslo", "Paris"], question="Where does Anna live?"
        )
    for candidate in result.candidates:
        print(f"{candidate.probability:6.1%}  {candidate.score:8.3f}  {candidate.text}")


if __name__ == "__main__":
    asyncio.run(main())
