"""Results as a pandas table, a row for each candidate. Imports pandas when called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from radixflow_sdk._results import Outcome, ScoreResult
from radixflow_sdk._validate import refuse

__all__ = ["to_frame"]


def to_frame(results: Iterable[ScoreResult | Outcome[Any, ScoreResult]]) -> Any:
    """A ``pandas.DataFrame`` of results, or of what `score_many` hands on.

    One row for each candidate, best first: ``result`` (the position among the results,
    or `Outcome.index`), ``rank``, ``index``, ``text``, ``score``, ``probability``,
    ``tied``, a column for each normalizer, ``tokens``, ``prompt_tokens``,
    ``cached_tokens``, ``model`` and ``group_id``. A failed outcome is one row with its
    ``error``.

    Args:
        results: Any iterable of them.

    Raises:
        InvalidInputError: It holds something else.
        ModuleNotFoundError: pandas is not installed.
    """
    import pandas

    return pandas.DataFrame(list(_rows(results)))


def _rows(
    results: Iterable[ScoreResult | Outcome[Any, ScoreResult]],
) -> Iterator[dict[str, Any]]:
    for place, given in enumerate(results):
        position = place
        result: object = given
        if isinstance(given, Outcome):
            position, result = given.index, given.result
        if isinstance(given, Outcome) and result is None:
            yield {"result": position, "error": str(given.error)}
            continue
        if not isinstance(result, ScoreResult):
            raise refuse(f"results[{place}]", given, "give a ScoreResult or an Outcome")
        for rank, candidate in enumerate(result.candidates, start=1):
            yield {
                "result": position,
                "rank": rank,
                "index": candidate.index,
                "text": candidate.text,
                "score": candidate.score,
                "probability": candidate.probability,
                "tied": candidate.tied,
                **{str(name): own for name, own in candidate.scores.items()},
                "tokens": len(candidate.tokens),
                "prompt_tokens": candidate.usage.prompt_tokens,
                "cached_tokens": candidate.usage.cached_tokens,
                "model": result.model,
                "group_id": result.group_id,
            }
