"""``radixflow bench``: the load, the figures, and what it says when things fail."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from radixflow_sdk import InvalidInputError, cli
from radixflow_sdk._bench import Load, quantile
from radixflow_sdk.testing import FakeServer, Fault

RUN = CliRunner()


class Counting(FakeServer):
    """A fake that counts its groups as rounds of two rows."""

    def _stats(self) -> dict[str, Any]:
        done = len(self.requests)
        counters = {"rounds": done, "rows": 2 * done}
        return super()._stats() | {"counters": counters}


@pytest.fixture
def server() -> Iterator[tuple[FakeServer, str]]:
    fake = Counting()
    with fake.listen_in_thread() as url:
        yield fake, url


def bench(url: str, *words: str) -> Any:
    return RUN.invoke(cli.app, ["bench", url, *words])


def test_the_figures(server: tuple[FakeServer, str]) -> None:
    fake, url = server
    small = (
        "--groups",
        "12",
        "--documents",
        "3",
        "--words",
        "64",
        "--concurrency",
        "4",
    )
    done = bench(url, *small, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["load"]["groups"] == 12
    seen = told["seen"]
    assert (seen["groups"], seen["failed"], seen["route"]) == (12, 0, "branches")
    assert 0 < seen["p50"] <= seen["p95"] <= seen["seconds"]
    assert (seen["rounds"], seen["rows_a_round"]) == (12, 2.0)
    assert seen["prompt_tokens"] > 12 * 4 * 64
    salts = {request.body["cache_salt"] for request in fake.requests}
    assert len(salts) == 2  # the first group's, and the load's
    assert len(fake.requests) == 13


def test_the_table(server: tuple[FakeServer, str]) -> None:
    done = bench(server[1], "--groups", "2", "--words", "3")
    assert done.exit_code == 0
    for words in (
        "2 questions of 4 options on 2 documents",
        "questions a second",
        "p95",
        "2.0 rows",
    ):
        assert words in " ".join(done.stdout.split())


def test_questions_that_fail_are_told(server: tuple[FakeServer, str]) -> None:
    fake, url = server
    fake.faults.extend([None, Fault(status=422, code="context_too_long")])
    done = bench(url, "--groups", "3", "--words", "3")
    assert done.exit_code == 1
    assert "1 of 3 failed; first: " in done.stderr
    assert "Traceback" not in done.output


def test_where_all_failed_there_is_no_table(server: tuple[FakeServer, str]) -> None:
    fake, url = server
    fake.faults.extend([None, *2 * [Fault(status=422, code="context_too_long")]])
    done = bench(url, "--groups", "2", "--words", "3")
    assert done.exit_code == 1
    assert "2 of 2 failed; first: " in done.stderr
    assert done.stdout == ""


def test_a_server_that_is_not_there_and_arguments_that_are_wrong() -> None:
    assert bench("http://127.0.0.1:9", "--timeout", "0.05").exit_code == 1
    assert bench("http://127.0.0.1:9", "--groups", "0").exit_code == 2
    with pytest.raises(InvalidInputError, match="options"):
        Load(options=0)


def test_the_load_is_the_same_in_every_run() -> None:
    load = Load(groups=6, documents=2, words=5)
    one, other = list(load.requests("a")), list(load.requests("b"))
    assert [r.document for r in one] == [r.document for r in other]
    assert len({r.document for r in one}) == 2
    assert len({(r.document, r.question) for r in one}) == 6
    assert {r.cache_salt for r in one} == {"a"}


@given(st.lists(st.floats(0, 9), min_size=1), st.floats(0, 1))
def test_a_quantile_is_the_smallest_that_enough_do_not_exceed(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
    below = [value for value in ordered if value < found]
    assert len(below) < max(share * len(ordered), 1e-9) or not below


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile([], 0.5) is None


def test_of_several_servers_none_is_asked_for_its_rounds() -> None:
    first, second = Counting(), Counting()
    with first.listen_in_thread() as one, second.listen_in_thread() as other:
        done = bench(f"{one},{other}", "--groups", "32", "--json")
    assert done.exit_code == 0, done.output
    seen = json.loads(done.stdout)["seen"]
    assert (seen["groups"], seen["rounds"], seen["others"]) == (32, None, None)
    assert first.requests
    assert second.requests


def test_of_several_servers_one_is_enough() -> None:
    with FakeServer().listen_in_thread() as gone:
        pass
    with FakeServer().listen_in_thread() as url:
        done = bench(f"{gone},{url}", "--groups", "8", "--json")
    assert done.exit_code == 0, done.output
