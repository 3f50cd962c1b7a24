"""What the scheduler refuses at construction, each in one sentence; and the switch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import vllm

from server_ext.config import POLICIES, ConfigurationError
from server_ext.engine import block_copy, compat
from server_ext.engine.scheduler_name import REFUSAL_FILE
from tests.engine.harness import Driver, create_scheduler, make_request, tokens


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        # vllm#36697: nothing would ever be published.
        ({"block_size": 1056, "token_budget": 1024}, "larger than the token budget"),
        ({"prefix_caching": False}, "prefix caching is off"),
        ({"cache_mode": "none", "match_unit": None}, "--mamba-cache-mode"),
        ({"block_size": 128, "rows": 16, "token_budget": 142}, "wait for ever"),
        ({"preset": "radixfast"}, "unknown RadixFlow policy"),
        ({"settings": {"traversl": True}}, "unknown key"),
        ({"settings": {"hold_ms": 0}}, "hold_ms"),
        ({"settings": {"order": "random"}}, "order"),
        ({"preset": "radixflow", "scheduling": "priority"}, "priority"),
    ],
)
def test_refused_configurations(
    knobs: dict[str, Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = tmp_path / "refusal"
    monkeypatch.setenv(REFUSAL_FILE, str(told))
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        create_scheduler(**knobs)
    assert told.read_text(encoding="utf-8") == str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_untested_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: "0.34.1")
    with pytest.raises(ConfigurationError, match=r"0\.34\.1.*0\.32\.0, 0\.33\.0"):
        create_scheduler()


def test_installed_version_is_the_one_that_runs() -> None:
    version = compat.check_version()
    assert version in compat.TESTED
    assert vllm.__version__.partition("+")[0] == version
    assert os.environ.get("RADIXFLOW_TEST_VLLM", version) == version


def test_fine_units_need_the_mended_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_copy, "copies_whole_blocks", lambda: False)
    with pytest.raises(ConfigurationError, match="general plug-in"):
        create_scheduler(match_unit=16)
    create_scheduler(match_unit=None)


def test_policy_switches_only_when_idle() -> None:
    driver = Driver.on()
    scheduler = driver.scheduler
    driver.send(make_request(scheduler, "chat", tokens("c", 300), max_tokens=3))
    assert not scheduler.set_policy("radix")
    driver.step()
    assert not scheduler.set_policy("radix")
    assert scheduler.policy_preset.name == "radixflow+"
    driver.run()
    for name in POLICIES:
        assert scheduler.set_policy(name)
        assert scheduler.snapshot()["policy"]["name"] == name
        driver.send(make_request(scheduler, name, tokens(name, 300)))
        driver.run()
    with pytest.raises(ConfigurationError, match="unknown RadixFlow policy"):
        scheduler.set_policy("radixfast")


def test_snapshot_tells_the_settings() -> None:
    snapshot = create_scheduler(block_size=528, match_unit=16, rows=7).snapshot()
    assert snapshot["vllm_version"] == compat.installed_version()
    assert snapshot["scheduler"] == "RadixFlowScheduler"
    assert snapshot["settings"] == {
        "block_size": 528,
        "match_unit": 16,
        "token_budget": 8192,
        "rows": 7,
        "max_model_len": 32768,
        "async_scheduling": False,
        "mamba_cache_mode": "align",
        "prefix_caching": True,
    }
