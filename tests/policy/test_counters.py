"""What the scheduler counts."""

from server_ext.policy.counters import Counters, Round, RoundLog


def round_of(
    log: RoundLog, scheduled: dict[str, int], *blocked: tuple[str, int], at: float = 0.0
) -> Round | None:
    log.round_starts(at)
    for request_id, running in blocked:
        log.blocked(request_id, running)
    return log.round_ends(scheduled, host_us=10, running=len(scheduled), waiting=1)


def test_a_round_without_work_is_none() -> None:
    log = RoundLog()
    assert round_of(log, {}) is None
    assert log.counters == Counters(host_us=10)


def test_rounds_rows_and_tokens() -> None:
    log = RoundLog()
    first = round_of(log, {"a": 10, "b": 5}, at=2.5)
    round_of(log, {"a": 1})
    assert (log.counters.rounds, log.counters.rows, log.counters.tokens) == (2, 3, 16)
    assert first is not None
    assert (first.number, first.at, first.running, first.waiting) == (1, 2.5, 2, 1)
    assert first.as_dict()["scheduled"] == {"a": 10, "b": 5}
    assert log.finished("a").as_dict().items() >= {"first": 1, "last": 2}.items()
    assert log.finished("b").tokens == 5
    assert log.finished("never seen").first == 0
    assert not log.traces


def test_a_branch_is_counted_blocked_once_and_its_visits_all() -> None:
    log = RoundLog()
    for _ in range(3):
        round_of(log, {"a": 1}, ("b", 1))
    assert (log.counters.blocked, log.counters.blocked_visits) == (1, 3)
    assert log.blocked_in_round == 1
    assert log.finished("b").blocked == 3


def test_rows_behind_a_blocked_branch_are_recovered() -> None:
    log = RoundLog()
    five = dict.fromkeys("adefg", 1)
    one = round_of(log, five, ("b", 2), ("c", 3))
    assert one is not None
    assert (one.recovered_rows, one.blocked) == (3, ("b", "c"))
    round_of(log, five)
    assert log.counters.recovered_rows == 3


def test_the_longest_wait_of_a_blocked_branch() -> None:
    log = RoundLog()
    assert log.oldest_blocked(9.0) == 0.0
    round_of(log, {"a": 1}, ("b", 1), at=1.0)
    round_of(log, {"a": 1}, ("b", 1), ("c", 1), at=2.0)
    assert log.oldest_blocked(9.0) == 8.0
    round_of(log, {"b": 1}, at=3.0)
    assert log.oldest_blocked(9.0) == 7.0
    assert log.counters.woken == 1
    log.finished("c")
    assert log.oldest_blocked(9.0) == 0.0


def test_admission_counts_what_the_cache_gave() -> None:
    log = RoundLog()
    log.admitted(100, 96)
    log.admitted(50, 0)
    counters = log.counters.as_dict()
    assert (counters["prompt_tokens"], counters["cached_tokens"]) == (150, 96)
    counters["rounds"] = 9
    assert log.counters.rounds == 0
