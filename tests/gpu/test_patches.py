"""Every worker must hold every patch, or the server does not start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.v1.engine.core import EngineCore
from vllm.v1.worker import utils
from vllm.v1.worker.worker_base import WorkerBase

from server_ext.engine import block_copy, patches, plugin
from server_ext.engine.scheduler_name import REFUSAL_FILE
from server_ext.policy.config import ConfigurationError

EVERY = ["block_copy", "token_rows", "prompt_logprobs"]


@pytest.fixture(autouse=True)
def registered() -> None:
    plugin.register()


class Core:
    """An engine core whose workers answer what it is given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers

    def collective_rpc(self, method: str) -> list[Any]:
        assert method == "radixflow_patches"
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
        return list(self.answers)


def test_a_worker_tells_what_it_holds() -> None:
    assert tuple(EVERY) == patches.NAMES
    assert WorkerBase.radixflow_patches(object()) == EVERY


def test_a_worker_whose_runner_was_loaded_first_is_patched_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runner's module keeps its own name for the function it imported."""
    runner = SimpleNamespace(copy_kv_cache_blocks_inplace=lambda *_: None)
    monkeypatch.setitem(__import__("sys").modules, block_copy._IMPORTERS[0], runner)
    assert "block_copy" not in patches.installed()
    assert WorkerBase.radixflow_patches(object()) == EVERY
    patched = utils.copy_kv_cache_blocks_inplace
    assert runner.copy_kv_cache_blocks_inplace is patched


def test_workers_that_hold_everything() -> None:
    assert plugin.ask_workers(Core(EVERY, EVERY)) == [EVERY, EVERY]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([EVERY, ["token_rows"]], "worker 1 lacks the patches block_copy, prompt_log"),
        ([[], EVERY], "worker 0 lacks"),
        ([EVERY, NotImplementedError("radixflow_patches")], "general plug-in"),
        ([EVERY, RuntimeError("Worker failed with error")], "general plug-in"),
    ],
)
def test_a_worker_without_a_patch_is_refused(
    answers: list[Any],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would serve, and its scores would be wrong without an error."""
    file = tmp_path / "refusal"
    monkeypatch.setenv(REFUSAL_FILE, str(file))
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        EngineCore._initialize_kv_caches(Core(*answers), SimpleNamespace())
    assert file.read_text("utf-8") == str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_registering_twice_asks_once() -> None:
    asking = EngineCore._initialize_kv_caches
    plugin.register()
    assert EngineCore._initialize_kv_caches is asking
