"""One question, many retrieved passages: two ways to share, and when to use which.

    radixflow serve demo &
    python examples/rag_fanout.py

**A group a passage.** Document = the passage, options = the candidate answers. Each
passage is computed once for all its options, and once more questions about it come (or
the same passage is retrieved again) it is in the cache already. Use it to *answer*: the
candidates are known and the passages are long.

**The question as the shared prefix.** Document = instructions and question, options =
the passages, label scoring. Everything before the passage is computed once for all of
them; each passage is computed once and never again. Use it to *rank or filter* passages
that are seen once, when instructions and examples are the long part.

The bundled model answers questions; to judge a passage's relevance it was not trained,
so the second half shows the calls and not a good ranking.
"""

import asyncio
import json

from radixflow_sdk import RadixFlowClient, ScoreRequest, Template
from server_ext.demo import HELD_OUT

PASSAGES = 6
# How a passage stands after the shared prefix, and what asks for the label.
RELEVANT = Template(
    before_option="\n\nPassage: ",
    after_option="\nDoes the passage answer the question?",
    labels=(" yes", " no"),
)


async def main() -> None:
    """Ask one question of passages of which one has the answer."""
    documents = json.loads(HELD_OUT.read_text(encoding="utf-8"))["documents"][:PASSAGES]
    passages = [document["document"] for document in documents]
    question = documents[2]["questions"][0]
    print(question["question"])
    async with RadixFlowClient() as client:
        # A group a passage: the passage that makes an answer most probable has it.
        requests = [
            ScoreRequest(
                document=passage,
                options=question["options"],
                question=question["question"],
            )
            for passage in passages
        ]
        outcomes = await client.score_all(requests, errors="raise")
        found = [outcome.unwrap().best for outcome in outcomes]
        for place, best in enumerate(found):
            print(f"  passage {place}: {best.text} ({best.score:.2f} nats)")
        surest = max(range(PASSAGES), key=lambda place: found[place].score)
        print(f"answer: {found[surest].text}, from passage {surest}")

        # The question as the shared prefix: one group, a branch a passage.
        ranked = await client.score_candidates(
            f"Question: {question['question']}",
            passages,
            scoring="label",
            normalize="label",
            template=RELEVANT,
        )
    order = ", ".join(str(candidate.index) for candidate in ranked.candidates)
    print(f"passages by P(yes): {order}")
    shared, usage = ranked.shared_tokens, ranked.usage
    print(f"{shared} tokens shared, {usage.computed_tokens} computed")


if __name__ == "__main__":
    asyncio.run(main())
