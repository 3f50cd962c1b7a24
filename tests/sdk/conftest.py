import pytest
from hypothesis import settings

# The machine that runs this may be busy with something else, and nothing is kept.
settings.register_profile("sdk", deadline=None, database=None)
settings.load_profile("sdk")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADIXFLOW_BASE_URL", raising=False)
    monkeypatch.delenv("RADIXFLOW_API_KEY", raising=False)
