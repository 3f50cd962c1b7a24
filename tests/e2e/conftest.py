from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server_ext.demo import CHECKPOINT
from tests.e2e.served import KEY, Served, fresh_salt, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One real server for all tests, with an API key."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, "--api-key", KEY, "--page") as served:
        yield served


@pytest.fixture
def salt() -> str:
    return fresh_salt()


@pytest.fixture(scope="session")
def encode() -> Callable[[str], list[int]]:
    """The demo model's tokenizer, by another door than the server's."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Show the end of the server's log beside a failure."""
    report: Any = yield
    served = getattr(item, "funcargs", {}).get("server")
    if report.failed and isinstance(served, Served):
        report.sections.append(("the server's log ends", served.tail()))
    return report
