from collections.abc import Iterator

import pytest

from tests.e2e.conftest import encode, pytest_runtest_makereport, salt
from tests.e2e.served import KEY, Served, serving
from tests.gpu.v2 import second_runner

__all__ = ["encode", "pytest_runtest_makereport", "salt", "server"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests that runs vLLM's V2 model runner on the CPU."""
    folder = tmp_path_factory.mktemp("v2")
    with serving(folder, "--api-key", KEY, **second_runner()) as served:
        yield served
