"""What the scheduler refuses at construction, each in one sentence; and the switch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import vllm

from server_ext.engine import block_copy, compat
from server_ext.engine.scheduler_name import REFUSAL_FILE
from server_ext.policy.config import POLICIES, ConfigurationError
from tests.engine.harness import (
    Driver,
    create_scheduler,
    make_group,
    make_request,
    tokens,
)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"prefix_caching": False}, "prefix caching is off"),
        ({"cache_mode": "none", "match_unit": None}, "--mamba-cache-mode"),
        ({"preset": "radixflow", "token_budget": 142}, "wait for ever"),
        ({"preset": "radixfast"}, "unknown RadixFlow policy"),
        ({"settings": {"traversl": True}}, "unknown key"),
        ({"settings": {"hold_ms": 0}}, "hold_ms"),
        ({"settings": {"order": "group"}}, "unknown key"),
        ({"settings": {"readiness": "native"}}, "tree needs"),
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


@pytest.mark.parametrize(
    "knobs",
    [
        {"block_size": 1024, "token_budget": 512},
        {"block_size": 1024, "token_budget": 512, "preset": "radixflow"},
        {"token_budget": 130},
        {"token_budget": 142},
        {"token_budget": 100},
        {"token_budget": 128, "match_unit": None},
        {"token_budget": 140, "match_unit": None},
        {"token_budget": 142, "match_unit": None},
        {"token_budget": 143, "preset": "radixflow"},
        {"block_size": 528, "rows": 100, "token_budget": 530},
    ],
)
def test_small_budgets_that_work(knobs: dict[str, Any]) -> None:
    """Beside rows that generate, a long prompt goes on and branches resume."""
    driver = Driver.on(**knobs)
    scheduler = driver.scheduler
    chats = scheduler.knobs.rows - 1
    for chat in range(chats):
        prompt = tokens(("chat", chat), 20)
        driver.send(make_request(scheduler, f"c{chat}", prompt, max_tokens=200))
    while len(scheduler.running) < chats:
        driver.step()
    driver.send(make_request(scheduler, "long", tokens("long", 1500)))
    while not driver.finished("long"):
        driver.step()
    assert all(not driver.finished(f"c{chat}") for chat in range(chats))
    document = tokens("document", 1500)
    tails = [tokens(branch, 20) for branch in range(4)]
    driver.send(make_group(scheduler, "g", document, tails, scored=4))
    driver.run(1500)
    block = scheduler.knobs.block_size
    unit = scheduler.knobs.unit if scheduler.policy_preset.tree else block
    hits = sorted(driver.cached_tokens(f"g-{branch}") for branch in range(4))
    assert hits[1] >= 1500 // unit * unit - unit


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
