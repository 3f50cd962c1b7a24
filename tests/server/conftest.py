import pytest
from hypothesis import settings

# The machine that runs this may be busy with something else, and nothing is kept.
settings.register_profile("server", deadline=None, database=None)
settings.load_profile("server")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RADIXFLOW_POLICY", "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
