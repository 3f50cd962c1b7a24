import pytest
import vllm

from server_ext.engine.compat import installed_version
from tests.engine.harness import shared_config


def pytest_report_header() -> str:
    return f"vllm: {installed_version()} from {vllm.__path__[0]}"


@pytest.fixture(scope="session", autouse=True)
def config() -> object:
    """The one VllmConfig of the session, made before any test's clock runs."""
    return shared_config()
