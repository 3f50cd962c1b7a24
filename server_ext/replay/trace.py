"""What is sent, and when: groups of branches as named segments, and their arrivals.

A trace holds no text and no tokens.  The scheduler never reads a token, it compares
prefixes, so a trace names the segments of each prompt (system prompt, shots, document,
question) and gives their lengths.  A trace file is JSON lines, a header first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

__all__ = [
    "ORDERS",
    "QUESTIONS",
    "REGIMES",
    "STREAMS",
    "Arrivals",
    "Group",
    "Segment",
    "Trace",
    "TraceError",
    "arrive",
    "few_shot_groups",
    "paper_groups",
    "read_trace",
    "session_groups",
    "spans",
    "wide_groups",
    "write_trace",
]

VERSION = 2
QUESTIONS = 1551
"""Questions of one stream, as in the paper."""
LONG_QUESTIONS = 517
"""Of these, on QuALITY-like articles: a third (the paper gives no split)."""
SHOTS = 5
"""Worked examples in the header of the few-shot stream."""
SESSIONS = 16
"""Sessions that are open at a time."""
TURNS = 8
"""Turns of a session."""

Regime = Literal["cold", "mixed", "reuse"]
Order = Literal["forward", "reversed"]
REGIMES: tuple[Regime, ...] = get_args(Regime)
"""Streams of the paper's questions; they differ in what a group finds in the cache."""
STREAMS = (*REGIMES, "few-shot", "sessions")
ORDERS: tuple[Order, ...] = get_args(Order)

Segment = tuple[str, int]
"""Name and tokens of a part of a prompt."""


class TraceError(ValueError):
    """A trace file cannot be used; the message names the line."""


@dataclass(frozen=True, slots=True)
class Group:
    """One question: N branches that share all segments before their own tails.

    Attributes:
        name: unique in the trace.
        at: offered arrival in seconds.
        segments: what all branches share, from the start of the prompt. Segments with
            the same names up to them and the same salt are the same tokens.
        branches: tokens of each branch's own tail.
        salt: cache namespace.
        session: groups of one session are sent one after another: the next one when
            the last one has ended, and not before its arrival.
    """

    name: str
    at: float
    segments: tuple[Segment, ...]
    branches: tuple[int, ...]
    salt: str = ""
    session: int | None = None

    @property
    def context_tokens(self) -> int:
        """Tokens that all branches share."""
        return sum(tokens for _, tokens in self.segments)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Where prompts can part: the end of each segment."""
        ends = dict.fromkeys(end for _, _, end in spans(self.segments))
        return tuple(end for end in ends if end)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.context_tokens + max(self.branches)

    def prompt(self, branch: int) -> tuple[Segment, ...]:
        """The segments of one branch's prompt."""
        tail = (f"{self.name}#{branch}", self.branches[branch])
        return (*self.segments, tail)


def spans(segments: Iterable[Segment]) -> Iterator[tuple[str, int, int]]:
    """Path of names, start and end in tokens of each segment."""
    path, end = "", 0
    for name, tokens in segments:
        path = f"{path}/{name}" if path else name
        start, end = end, end + tokens
        yield path, start, end


@dataclass(frozen=True, slots=True)
class Trace:
    """Groups in order of arrival, and where they come from.

    Attributes:
        name: its name.
        groups: the groups.
        about: how it was made: seed, stream, order, arrivals.
    """

    name: str
    groups: tuple[Group, ...]
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When groups arrive.

    Attributes:
        kind: ``poisson``; ``burst``: `burst` groups at a time, at the same mean rate;
            ``backlog``: all at once; ``closed``: `sessions` clients that each send
            their next group when the last one has ended.
        rate: groups a second (not for ``backlog`` and ``closed``).
        burst: groups in a burst.
        sessions: clients of a closed loop.
        seed: of the gaps.
    """

    kind: Literal["poisson", "burst", "backlog", "closed"] = "poisson"
    rate: float = 1.0
    burst: int = 16
    sessions: int = 8
    seed: int = 0


# -- streams ---------------------------------------------------------------------------


def _lengths() -> dict[str, Any]:
    path = Path(__file__).with_name("lengths.json")
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


def _passages() -> list[dict[str, Any]]:
    table = _lengths()
    return [*table["short_stories"], *table["short_passages"]]


def _articles(
    table: Sequence[dict[str, Any]], kind: str, questions: int, source: random.Random
) -> Iterator[list[Group]]:
    """Articles drawn from the table with replacement until `questions` are asked."""
    left, number = questions, 0
    while left > 0:
        article = source.choice(table)
        name = f"{kind}{number}"
        asked = article["questions"][:left]
        yield [
            Group(
                name=f"{name}.{index}",
                at=0.0,
                segments=(
                    (name, article["document"]),
                    (f"{name}.{index}", question["question"]),
                ),
                branches=tuple(question["options"][:4]),
            )
            for index, question in enumerate(asked)
        ]
        left -= len(asked)
        number += 1


def paper_groups(
    *,
    regime: Regime,
    order: Order = "forward",
    questions: int = QUESTIONS,
    seed: int = 0,
) -> tuple[Group, ...]:
    """The paper's questions with the lengths of public tables, not yet timed.

    Articles are shuffled; an article's questions stay together.  In ``cold`` each
    group has a cache namespace of its own, in ``reuse`` an article's groups share one,
    in ``mixed`` each group draws which of the two it is.

    Args:
        regime: what a group can find in the cache.
        order: ``reversed`` turns the whole stream around.
        questions: groups.
        seed: of the draw; the same for all regimes and orders.
    """
    source = random.Random(f"groups {seed}")
    long = round(questions * LONG_QUESTIONS / QUESTIONS)
    articles = [
        *_articles(_lengths()["long"], "long", long, source),
        *_articles(_passages(), "short", questions - long, source),
    ]
    source.shuffle(articles)
    groups = []
    for group in (group for article in articles for group in article):
        alone = source.random() < 0.5
        if regime == "cold" or (regime == "mixed" and alone):
            groups.append(replace(group, salt=group.name))
        else:
            groups.append(group)
    return tuple(groups if order == "forward" else reversed(groups))


def few_shot_groups(
    *, questions: int = QUESTIONS, seed: int = 0, order: Order = "forward"
) -> tuple[Group, ...]:
    """One header of worked examples, then questions on many short passages.

    Args:
        questions: groups.
        seed: of the draw.
        order: ``reversed`` turns the whole stream around.
    """
    source = random.Random(f"few-shot {seed}")
    shots = 0
    for passage in source.sample(_passages(), SHOTS):
        question = passage["questions"][0]
        shots += passage["document"] + question["question"] + question["options"][0]
    groups = [
        replace(group, segments=(("shots", shots), *group.segments))
        for article in _articles(_passages(), "passage", questions, source)
        for group in article
    ]
    return tuple(groups if order == "forward" else reversed(groups))


def session_groups(*, questions: int = QUESTIONS, seed: int = 0) -> tuple[Group, ...]:
    """Documents that grow turn by turn, each with one question a turn.

    `SESSIONS` sessions are open at a time and take turns at random; one that had
    `TURNS` turns ends and another begins.

    Args:
        questions: groups.
        seed: of the draw.
    """
    source = random.Random(f"sessions {seed}")
    passages = _passages()
    numbers = list(range(SESSIONS))
    grown: dict[int, list[Segment]] = {number: [] for number in numbers}
    groups = []
    for _ in range(questions):
        place = source.randrange(SESSIONS)
        number = numbers[place]
        passage, document = source.choice(passages), grown[number]
        question = source.choice(passage["questions"])
        name = f"session{number}.{len(document)}"
        document.append((name, passage["document"]))
        groups.append(
            Group(
                name=name,
                at=0.0,
                segments=(*document, (f"{name}?", question["question"])),
                branches=tuple(question["options"][:4]),
                session=number,
            )
        )
        if len(document) == TURNS:
            del grown[number]
            numbers[place] = fresh = max(numbers) + 1
            grown[fresh] = []
    return tuple(groups)


def wide_groups(
    *, width: int, groups: int = 16, document_tokens: int = 3000, seed: int = 0
) -> tuple[Group, ...]:
    """Groups of `width` branches, each on a document of its own.

    Args:
        width: branches a group, 2 to 1,024.
        groups: how many.
        document_tokens: mean length; each is within a quarter of it.
        seed: of the lengths.
    """
    if not 2 <= width <= 1024:
        raise TraceError(f"a width must be from 2 to 1024, got {width}")
    source = random.Random(f"wide {seed}")
    found = []
    for index in range(groups):
        document = round(document_tokens * source.uniform(0.75, 1.25))
        question = source.randint(8, 30)
        branches = tuple(source.randint(4, 40) for _ in range(width))
        name = f"wide{index}"
        found.append(Group(name, 0.0, ((name, document), (name, question)), branches))
    return tuple(found)


def arrive(groups: Sequence[Group], arrivals: Arrivals) -> tuple[Group, ...]:
    """Give each group its arrival; the groups keep their order."""
    if arrivals.kind == "backlog":
        return tuple(replace(group, at=0.0) for group in groups)
    if arrivals.kind == "closed":
        return tuple(
            replace(
                group,
                at=0.0,
                session=(
                    index % arrivals.sessions
                    if group.session is None
                    else group.session
                ),
            )
            for index, group in enumerate(groups)
        )
    source = random.Random(f"arrivals {arrivals.seed}")
    at, timed = 0.0, []
    for index, group in enumerate(groups):
        if arrivals.kind == "poisson":
            at += source.expovariate(arrivals.rate)
        elif index % arrivals.burst == 0:
            at += source.expovariate(arrivals.rate / arrivals.burst)
        timed.append(replace(group, at=round(at, 6)))
    return tuple(timed)


# -- files -----------------------------------------------------------------------------


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as JSON lines."""
    head = {
        "radixflow_trace": VERSION,
        "name": trace.name,
        "groups": len(trace.groups),
        "about": trace.about,
    }
    lines = [head, *(asdict(group) for group in trace.groups)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        TraceError: not a trace, another version, or an invalid line.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    head = _parsed(path, 1, lines[0] if lines else "")
    if head.get("radixflow_trace") != VERSION:
        raise TraceError(f"{path}, line 1: not a trace of version {VERSION}")
    groups = tuple(_groups(path, lines[1:]))
    if len(groups) != head.get("groups"):
        raise TraceError(
            f"{path}: {head.get('groups')} groups promised, {len(groups)} there"
        )
    return Trace(str(head.get("name")), groups, dict(head.get("about") or {}))


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise TraceError(f"{path}, line {number}: not an object")
    return value


def _groups(path: Path, lines: Iterable[str]) -> Iterator[Group]:
    seen: set[str] = set()
    lengths: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, start=2):
        value = _parsed(path, number, line)
        try:
            segments = tuple((name, tokens) for name, tokens in value["segments"])
            branches = tuple(value["branches"])
            group = Group(**{**value, "segments": segments, "branches": branches})
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None
        if problem := _problem(group, seen, lengths):
            raise TraceError(f"{path}, line {number}: {problem}")
        seen.add(group.name)
        yield group


def _problem(
    group: Group, seen: set[str], lengths: dict[tuple[str, str], int]
) -> str | None:
    counts = (*(tokens for _, tokens in group.segments), *group.branches)
    if group.name in seen:
        return f"a second group {group.name!r}"
    if not group.branches or any(type(n) is not int or n < 0 for n in counts):
        return "lengths must be whole numbers, and there must be a branch"
    if min(group.branches) < 1 or not group.at >= 0:
        return "a branch needs a token of its own, an arrival must not be negative"
    for path, start, end in spans(group.segments):
        if lengths.setdefault((group.salt, path), end - start) != end - start:
            return f"segment {path!r} has two lengths"
    return None
