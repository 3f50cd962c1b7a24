"""Two results files of the same questions: the paired difference, and what changed.

* McNemar's test, exact: of the questions that one is right on and the other wrong, as
  many on each side as a fair coin would give. McNemar (1947), Psychometrika 12.
* interval: percentile bootstrap of the difference in accuracy. Whole documents are
  drawn, since questions on one document are not independent. Efron (1979), Annals of
  Statistics 7.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radixflow_sdk.evals.containers import RESULTS_KEY
from radixflow_sdk.exceptions import InvalidInputError

__all__ = ["Comparison", "Difference", "compare", "mcnemar", "read_records"]

MAX_DRAWS = 4_000_000
RESAMPLES = 2_000
_KEYS = {"qid", "digest", "doc_id", "model", "gold", "scores", "picked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs under one normalizer.

    Attributes:
        first: Accuracy of the first run.
        second: Accuracy of the second.
        low: Lower end of the 95 % interval of ``second - first``.
        high: Upper end.
        gained: Questions that only the second is right on.
        lost: Questions that only the first is right on.
        p: Of McNemar's exact test, two-sided.
    """

    first: float
    second: float
    low: float
    high: float
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs over the questions that both answered.

    Attributes:
        questions: How many these are.
        left_out: Questions that only one of them answered.
        differences: By normalizer.
    """

    questions: int
    left_out: int
    differences: Mapping[str, Difference]

    def as_json(self) -> dict[str, Any]:
        """The figures, for programs."""
        return asdict(self)


def compare(first: Path, second: Path) -> Comparison:
    """Compare two results files.

    Raises:
        InvalidInputError: One is no results file, a question is not the same in both,
            or they have no question in common.
    """
    one, other = read_records(first), read_records(second)
    both = [qid for qid in one if qid in other]
    for qid in both:
        if one[qid]["digest"] != other[qid]["digest"]:
            raise _refused(second, f"answers another question {qid!r} than {first}")
    if not both:
        raise _refused(second, f"has no question in common with {first}")
    names = [
        name
        for name in one[both[0]]["picked"]
        if all(name in run[qid]["picked"] for run in (one, other) for qid in both)
    ]
    return Comparison(
        questions=len(both),
        left_out=len(one) + len(other) - 2 * len(both),
        differences={
            name: _difference(
                [one[qid] for qid in both], [other[qid] for qid in both], name
            )
            for name in names
        },
    )


def mcnemar(gained: int, lost: int) -> float:
    """The exact two-sided p-value of McNemar's test."""
    count = gained + lost
    term = total = 1
    for place in range(min(gained, lost)):
        term = term * (count - place) // (place + 1)
        total += term
    return min(1.0, float(2 * total / (1 << count)))


def _difference(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], name: str
) -> Difference:
    gained: list[str] = []
    lost: list[str] = []
    clusters: dict[str, list[int]] = {}
    right = [0, 0]
    for before, after in zip(one, other, strict=True):
        hits = [record["picked"][name] == record["gold"] for record in (before, after)]
        right = [count + hit for count, hit in zip(right, hits, strict=True)]
        change = hits[1] - hits[0]
        if change:
            (gained if change > 0 else lost).append(before["qid"])
        cluster = before["doc_id"] or f"\0{before['qid']}"
        clusters.setdefault(cluster, []).append(change)
    low, high = _interval([(sum(own), len(own)) for own in clusters.values()])
    return Difference(
        first=right[0] / len(one),
        second=right[1] / len(one),
        low=low,
        high=high,
        gained=tuple(gained),
        lost=tuple(lost),
        p=mcnemar(len(gained), len(lost)),
    )


def _interval(clusters: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The middle 95 % of resampled differences; the same for the same runs."""
    draw = random.Random(0)
    count = len(clusters)
    found = []
    for _ in range(max(200, min(RESAMPLES, MAX_DRAWS // count))):
        drawn = draw.choices(clusters, k=count)
        changes = sum(change for change, _ in drawn)
        found.append(changes / sum(size for _, size in drawn))
    found.sort()
    edge = round(0.025 * (len(found) - 1))
    return found[edge], found[-1 - edge]


def read_records(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a results file; of a question that is there twice, the last.

    Raises:
        InvalidInputError: It cannot be read, or is no results file.
    """
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        if RESULTS_KEY not in json.loads(head):
            raise ValueError
    except OSError as error:
        raise _refused(path, error.strerror or "cannot be read") from None
    except (TypeError, ValueError):
        raise _refused(path, "is no results file of radixflow eval") from None
    found = {}
    for line in lines:
        try:
            record = json.loads(line)
            if record.keys() >= _KEYS:
                found[record["qid"]] = record
        except (AttributeError, ValueError):
            continue  # a damaged line, as in a run
    return found


def _refused(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(f"{str(path)!r} {why}.", field="file", value=str(path))
