"""What the scheduler counts."""

from server_ext.metrics import Counters, RoundLog, Trace


def test_a_round_without_work_is_none() -> None:
    log = RoundLog()
    log.round_starts()
    log.round_ends({}, 0)
    assert log.counters == Counters()


def test_rounds_rows_and_tokens() -> None:
    log = RoundLog()
    log.round_starts()
    log.round_ends({"a": 10, "b": 5}, 2)
    log.round_starts()
    log.round_ends({"a": 1}, 1)
    assert (log.counters.rounds, log.counters.rows, log.counters.tokens) == (2, 3, 16)
    assert log.finished("a") == Trace(first=1, last=2, tokens=11)
    assert log.finished("b") == Trace(first=1, last=1, tokens=5)
    assert log.finished("never seen") == Trace()
    assert not log.traces


def test_a_branch_is_counted_blocked_once_and_its_visits_all() -> None:
    log = RoundLog()
    for _ in range(3):
        log.round_starts()
        log.blocked("b", running=1)
        log.round_ends({"a": 1}, 1)
    assert (log.counters.blocked, log.counters.blocked_visits) == (1, 3)
    assert log.finished("b").blocked == 3


def test_rows_behind_a_blocked_branch_are_recovered() -> None:
    log = RoundLog()
    log.round_starts()
    log.blocked("b", running=2)
    log.blocked("c", running=3)
    log.round_ends({"a": 1, "d": 1, "e": 1, "f": 1, "g": 1}, 5)
    assert log.counters.recovered_rows == 3
    log.round_starts()
    log.round_ends({"a": 1}, 5)
    assert log.counters.recovered_rows == 3


def test_admission_counts_what_the_cache_gave() -> None:
    log = RoundLog()
    log.admitted(100, 96)
    log.admitted(50, 0)
    counters = log.counters.as_dict()
    assert (counters["prompt_tokens"], counters["cached_tokens"]) == (150, 96)
    counters["rounds"] = 9
    assert log.counters.rounds == 0
