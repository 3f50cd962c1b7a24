"""A real server's run, exported and replayed: arrivals keyed to rounds.

A recording holds what arrived after which round, and the rounds that the server made of
it.  Replayed by the same policy the rounds must come out again; by another policy they
are what that policy would have made of the same arrivals.  No text and no token is in
it: a prompt refers to an earlier one with which it shares a prefix.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from server_ext.policy.arrivals import KEY
from server_ext.policy.config import Policy
from server_ext.policy.hints import Hints

__all__ = [
    "Recording",
    "RecordingError",
    "Request",
    "ServedRound",
    "compare",
    "read_recording",
    "recording_from",
    "replay_recording",
    "write_recording",
]

RECORDING = 1
_TURNS = 10_000
"""Consecutive steps without work after which a replay counts as stuck."""


class RecordingError(ValueError):
    """A run cannot be exported or replayed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived.

    Attributes:
        name: its id.
        after: rounds that had been planned before it arrived.
        at: when, in seconds of the server's clock.
        tokens: length of its prompt.
        reads_cache: whether it may resume from the prefix cache.
        like: an earlier request with the longest prefix in common, None: there is none.
        shared: match units that it has in common with that one.
        hints: its hints, or None.
    """

    name: str
    after: int
    at: float
    tokens: int
    reads_cache: bool
    like: str | None
    shared: int
    hints: Hints | None


@dataclass(frozen=True, slots=True)
class ServedRound:
    """One round.

    Attributes:
        number: the server's number for it.
        at: its start, in seconds of the server's clock.
        waiting: requests that waited when it was planned.
        scheduled: tokens of each request.
    """

    number: int
    at: float
    waiting: int
    scheduled: Mapping[str, int]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(self.scheduled.values())


@dataclass(frozen=True, slots=True)
class Recording:
    """A run of a server.

    Attributes:
        policy: the scheduler's.
        shape: the cache and the bounds of a round.
        asynchronous: whether a round was planned while the last one ran.
        after: the round that the run begins after.
        requests: in order of arrival.
        rounds: what the server did.
    """

    policy: Policy
    shape: Mapping[str, int | None]
    asynchronous: bool
    after: int
    requests: tuple[Request, ...]
    rounds: tuple[ServedRound, ...]


# -- from a server ---------------------------------------------------------------------


def recording_from(
    arrivals: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], *, after: int = 0
) -> Recording:
    """Make a recording of what the routes of a server say.

    Args:
        arrivals: the answer of ``GET /v1/radixflow/arrivals``.
        rounds: ``rounds`` of the answer of ``GET /v1/radixflow/rounds``.
        after: the round that the run begins after; nothing may have been in the
            scheduler then.

    Raises:
        RecordingError: the server no longer has the whole run, or a request in it
            generates more than one token.
    """
    settings = arrivals["settings"]
    kept = [entry for entry in arrivals["arrivals"] if entry["after"] >= after]
    served = tuple(
        ServedRound(
            number=entry["number"],
            at=entry["at"],
            waiting=entry["waiting"],
            scheduled=dict(entry["scheduled"]),
        )
        for entry in rounds
        if entry["number"] > after
    )
    _check_whole(kept, served, after)
    return Recording(
        policy=Policy(**arrivals["policy"]),
        shape={
            "block_size": settings["block_size"],
            "unit": settings["match_unit"],
            "recurrent_groups": arrivals["recurrent_groups"],
            "blocks": arrivals["blocks"],
            "max_model_len": settings["max_model_len"],
            "token_budget": settings["token_budget"],
            "rows": settings["rows"],
            "retention": arrivals["retention"],
        },
        asynchronous=settings["async_scheduling"],
        after=after,
        requests=tuple(_requests(kept, settings["match_unit"])),
        rounds=served,
    )


def _check_whole(
    arrivals: Sequence[Mapping[str, Any]], rounds: Sequence[ServedRound], after: int
) -> None:
    if not rounds:
        raise RecordingError(f"the server has had no round after round {after}")
    numbers = [entry.number for entry in rounds]
    if numbers != list(range(after + 1, after + 1 + len(numbers))):
        raise RecordingError(
            f"the server keeps rounds {numbers[0]} to {numbers[-1]} only, not all "
            f"after {after}: export sooner, or name a later idle moment with --after"
        )
    known = {entry["name"] for entry in arrivals}
    for served in rounds:
        if unknown := next((n for n in served.scheduled if n not in known), None):
            raise RecordingError(
                f"round {served.number} has request {unknown}, whose arrival the "
                f"server does not give: it came before round {after}, is no longer "
                "kept, or came just now; export an idle server, or name a later idle "
                "moment with --after"
            )
    for entry in arrivals:
        if entry["generates"] != 1:
            raise RecordingError(
                f"request {entry['name']} generates up to {entry['generates']} tokens: "
                "only scored requests, of one token, can be replayed"
            )


def _requests(arrivals: Iterable[Mapping[str, Any]], unit: int) -> Iterator[Request]:
    """Say of each prompt what it shares with an earlier one, and forget its keys."""
    seen: dict[str, str] = {}
    for entry in arrivals:
        digits = 2 * KEY
        keys = [
            entry["keys"][start : start + digits]
            for start in range(0, len(entry["keys"]), digits)
        ]
        if len(keys) != entry["tokens"] // unit:
            raise RecordingError(
                f"request {entry['name']} has {len(keys)} block keys for "
                f"{entry['tokens']} tokens: is prefix caching on?"
            )
        shared = 0
        while shared < len(keys) and keys[shared] in seen:
            shared += 1
        like = seen[keys[shared - 1]] if shared else None
        for key in keys[shared:]:
            seen[key] = entry["name"]
        yield Request(
            name=entry["name"],
            after=entry["after"],
            at=entry["at"],
            tokens=entry["tokens"],
            reads_cache=entry["reads_cache"],
            like=like,
            shared=shared,
            hints=_hints(entry["hints"]),
        )


# -- files -----------------------------------------------------------------------------


def write_recording(recording: Recording, path: Path) -> None:
    """Write a recording as JSON lines."""
    head = {
        "radixflow_recording": RECORDING,
        "requests": len(recording.requests),
        "rounds": len(recording.rounds),
        "after": recording.after,
        "asynchronous": recording.asynchronous,
        "policy": recording.policy.as_dict(),
        "shape": dict(recording.shape),
    }
    lines = [head, *(asdict(request) for request in recording.requests)]
    lines += [asdict(served) for served in recording.rounds]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        RecordingError: not a recording, another version, or an invalid line.
    """
    lines = path.read_text(encoding="utf-8").splitlines() or [""]
    with _line(path, 1):
        head = json.loads(lines[0])
        if not isinstance(head, dict) or head.get("radixflow_recording") != RECORDING:
            raise ValueError(f"no recording of version {RECORDING}")
        policy, unit = Policy(**head["policy"]), head["shape"]["unit"]
        middle = 1 + head["requests"]
        if len(lines) != middle + head["rounds"]:
            raise ValueError(
                f"{head['requests']} requests and {head['rounds']} rounds promised, "
                f"{len(lines) - 1} lines there"
            )
    requests: dict[str, Request] = {}
    rounds = []
    for number, line in enumerate(lines[1:], start=2):
        with _line(path, number):
            if number > middle:
                rounds.append(ServedRound(**json.loads(line)))
                continue
            request = _read_request(json.loads(line))
            _check_request(request, requests, unit)
            requests[request.name] = request
    return Recording(
        policy=policy,
        shape=head["shape"],
        asynchronous=bool(head["asynchronous"]),
        after=head["after"],
        requests=tuple(requests.values()),
        rounds=tuple(rounds),
    )


@contextmanager
def _line(path: Path, number: int) -> Iterator[None]:
    """Name the line in whatever is wrong with it."""
    try:
        yield
    except KeyError as error:
        raise RecordingError(f"{path}, line {number}: {error} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{path}, line {number}: {error}") from None


def _read_request(value: dict[str, Any]) -> Request:
    return Request(**{**value, "hints": _hints(value["hints"])})


def _hints(value: Mapping[str, Any] | None) -> Hints | None:
    """Hints out of JSON, where a tuple comes back as a list."""
    if value is None:
        return None
    return Hints(**{**value, "boundaries": tuple(value["boundaries"])})


def _check_request(request: Request, before: Mapping[str, Request], unit: int) -> None:
    if request.name in before:
        raise ValueError(f"a second request {request.name!r}")
    if type(request.tokens) is not int or request.tokens < 1:
        raise ValueError(f"{request.tokens!r} tokens")
    known = 0 if request.like is None else before[request.like].tokens // unit
    if not 0 <= request.shared <= min(known, request.tokens // unit):
        raise ValueError(f"{request.shared} units shared, of {known}")


# -- replay ----------------------------------------------------------------------------


def replay_recording(
    recording: Recording, *, policy: Policy | None = None
) -> tuple[ServedRound, ...]:
    """The rounds that the real scheduler makes of a recording's arrivals.

    The cache is empty at the beginning.  Time is the server's: round n is planned when
    the server planned its round n.

    Args:
        recording: the run.
        policy: None: the server's own.

    Raises:
        RecordingError: the scheduler hangs on it.
    """
    return _Run(recording, policy or recording.policy).run()


class _Run:
    def __init__(self, recording: Recording, policy: Policy) -> None:
        from server_ext.replay.loop import EngineLoop
        from server_ext.replay.rig import Shape, make_served_scheduler

        shape = Shape(**recording.shape)  # type: ignore[arg-type]
        asynchronous = recording.asynchronous
        self.recording = recording
        self.now = 0.0
        self.rounds: list[ServedRound] = []
        self.due = deque(recording.requests)
        self._unit = shape.unit
        self._keys: dict[str, tuple[bytes, ...]] = {}
        self._pauses = 0
        self.scheduler = make_served_scheduler(shape, policy, asynchronous=asynchronous)
        self.scheduler.clock = lambda: self.now
        self.scheduler.sleep = self._sleep
        self.loop = EngineLoop(
            self.scheduler, self._execute, asynchronous=asynchronous, after=self._after
        )

    def run(self) -> tuple[ServedRound, ...]:
        while self.due or self.loop.busy:
            self._receive()
            served = self.recording.rounds
            if len(self.rounds) < len(served):
                self.now = max(self.now, served[len(self.rounds)].at)
            self.loop.step()
        return tuple(self.rounds)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _receive(self) -> None:
        """Add what arrived before the next round; an idle engine waits for the next."""
        planned = self.recording.after + len(self.rounds)
        if self.due and not self.loop.busy:
            planned = max(planned, self.due[0].after)
        while self.due and self.due[0].after <= planned:
            request = self.due.popleft()
            self.now = max(self.now, request.at)
            self._add(request)

    def _execute(self, planned: Any) -> Any:
        from server_ext.replay.rig import model_output

        if planned.num_scheduled_tokens:
            self.rounds.append(
                ServedRound(
                    number=self.recording.after + len(self.rounds) + 1,
                    at=self.now,
                    waiting=self.scheduler.history[-1].waiting,
                    scheduled=dict(planned.num_scheduled_tokens),
                )
            )
        return model_output(self.scheduler, planned)

    def _after(self, planned: Any, _answers: Any) -> None:
        """An engine that found nothing to run pauses."""
        if planned.num_scheduled_tokens:
            self._pauses = 0
        elif not self.loop.in_flight:
            self._sleep(0.001)
            self._pauses += 1
        if self._pauses > _TURNS:
            raise RecordingError(
                f"nothing ran for {_TURNS} turns after round {len(self.rounds)}"
            )

    def _add(self, request: Request) -> None:
        from server_ext.replay.rig import make_request, wire

        whole = request.tokens // self._unit
        common = self._keys[request.like][: request.shared] if request.like else ()
        own = (
            hashlib.blake2b(f"{request.name}|{i}".encode(), digest_size=16).digest()
            for i in range(request.shared, whole)
        )
        keys = self._keys[request.name] = (*common, *own)
        self.scheduler.add_request(
            make_request(
                request.name,
                request.tokens,
                keys,
                self._unit,
                arrival=request.at,
                extra_args=None if request.hints is None else wire(request.hints),
                reads_cache=request.reads_cache,
            )
        )


def compare(
    served: Sequence[ServedRound], predicted: Sequence[ServedRound]
) -> dict[str, Any]:
    """Figures of the server beside those of the replay, as JSON-ready data."""
    same = 0
    for one, other in zip(served, predicted, strict=False):
        if dict(one.scheduled) != dict(other.scheduled):
            break
        same += 1
    whole = same == len(served) == len(predicted)
    figures: dict[str, Any] = {}
    for name, rounds in (("served", served), ("replayed", predicted)):
        figures[name] = {
            "rounds": len(rounds),
            "rows": sum(len(entry.scheduled) for entry in rounds),
            "tokens": sum(entry.tokens for entry in rounds),
        }
    return {
        **figures,
        "rounds_off": len(predicted) / len(served) - 1 if served else None,
        "equal_rounds": same,
        "first_difference": None if whole else same + 1,
    }
