r"""Reranking: which passages answer a query? Pure: requests, and what they come to.

``label`` puts instruction and query first and every passage behind them, in one group,
and asks for a yes or a no: a passage's score is P(yes) / (P(yes) + P(no)).
``query_likelihood`` puts each passage first, in a group of its own, and scores the
query behind it (Sachan et al., "Improving Passage Retrieval with Zero-Shot Question
Generation", arXiv 2204.07496): a passage that is in the cache already costs the query
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from radixflow_sdk._prompt import Template
from radixflow_sdk._requests import RerankTemplate, ScoreRequest
from radixflow_sdk._results import RankedPassage, RerankResult, ScoreResult
from radixflow_sdk._validate import check_choice, check_count, read_text, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The words of one template for label scoring.

    Attributes:
        before: Stands first.
        instruction: The default instruction.
        after: Stands behind a passage, before the label.
        labels: Yes and no.
    """

    before: str
    instruction: str
    after: str
    labels: tuple[str, str]

    def document(self, query: str, instruction: str | None) -> str:
        asked = self.instruction if instruction is None else instruction
        return f"{self.before}<Instruct>: {asked}\n<Query>: {query}\n<Document>:"


_INSTRUCTION = (
    "Given a web search query, retrieve relevant passages that answer the query"
)
_TEMPLATES: Mapping[str, _Words] = {
    # As published with the models (Apache-2.0); other tokens give other scores.
    "qwen3-reranker": _Words(
        before=(
            "<|im_start|>system\nJudge whether the Document meets the requirements "
            "based on the Query and the Instruct provided. Note that the answer can "
            'only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        ),
        instruction=_INSTRUCTION,
        after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        labels=("yes", "no"),
    ),
    "plain": _Words(
        before="Does the document answer the query? Answer yes or no.\n\n",
        instruction=_INSTRUCTION,
        after="\n\nAnswer:",
        labels=(" yes", " no"),
    ),
}


def template_for(model: str, template: RerankTemplate) -> RerankTemplate:
    """The template that ``auto`` stands for."""
    if template != "auto":
        return template
    return "qwen3-reranker" if "qwen3-reranker" in model.lower() else "plain"


def read_passages(passages: object) -> tuple[str, ...]:
    """The passages as texts.

    Raises:
        InvalidInputError: There is none, or one is no text or empty.
    """
    if isinstance(passages, str | bytes) or not isinstance(passages, Sequence):
        raise refuse("passages", passages, "give a list of texts")
    if not passages:
        raise refuse("passages", passages, "give at least one")
    for index, passage in enumerate(passages):
        if not isinstance(passage, str) or not passage:
            raise refuse(f"passages[{index}]", passage, "give text")
    return tuple(passages)


def check(query: object, *, top_n: int | None, mode: object, template: object) -> None:
    """Refuse arguments that are not usable.

    Raises:
        InvalidInputError: One is not.
    """
    if not read_text("query", query):
        raise refuse("query", query, "give text")
    if top_n is not None:
        check_count("top_n", top_n)
    check_choice("mode", mode, ("label", "query_likelihood"))
    check_choice("template", template, ("auto", *_TEMPLATES))


def label_request(
    query: str,
    passages: Sequence[str],
    *,
    instruction: str | None,
    template: RerankTemplate,
) -> ScoreRequest:
    """One group: the query before every passage."""
    words = _TEMPLATES[template]
    return ScoreRequest(
        document=words.document(query, instruction),
        options=passages,
        scoring="label",
        normalize="label",
        template=Template(after_option=words.after, labels=words.labels),
    )


def likelihood_request(
    query: str, passage: str, *, instruction: str | None
) -> ScoreRequest:
    """A group for a passage: the query behind it."""
    asked = instruction or "Please write a question based on this passage."
    return ScoreRequest(
        document=f"Passage: {passage}\n{asked}\nQuestion:",
        options=[query],
        normalize="mean",
    )


def ranked(
    passages: Sequence[str], groups: Sequence[ScoreResult], *, top_n: int | None
) -> RerankResult:
    """The passages, best first; equal scores in the order given."""
    if len(groups) == 1 and groups[0].normalize == "label":
        scores = {c.index: math.exp(c.score) for c in groups[0].candidates}
    else:
        scores = {index: group.best.score for index, group in enumerate(groups)}
    order = sorted(scores, key=lambda index: (-scores[index], index))
    return RerankResult(
        passages=tuple(
            RankedPassage(index=index, text=passages[index], score=scores[index])
            for index in order[:top_n]
        ),
        model=groups[0].model,
        groups=tuple(groups),
    )
