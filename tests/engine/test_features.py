"""Everything else that vLLM does: it goes on working beside scored groups."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from vllm.config import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState

from tests.engine.harness import Driver, make_group, make_request, tokens

PRESETS = pytest.mark.parametrize("preset", ["radix", "radixflow", "radixflow+"])
ASYNCHRONOUS = pytest.mark.parametrize(
    "asynchronous", [False, True], ids=["sync", "async"]
)


def send_group(driver: Driver, name: str, length: int = 100, **options: Any) -> None:
    document = tokens(f"document of {name}", length)
    tails = [tokens(f"{name} tail {index}", 9) for index in range(4)]
    driver.send(make_group(driver.scheduler, name, document, tails, **options))


def send_chat(driver: Driver, name: str, length: int = 40, answer: int = 5) -> Any:
    prompt = tokens(f"chat {name}", length)
    chat = make_request(driver.scheduler, name, prompt, max_tokens=answer)
    driver.send(chat)
    return chat


# --- adapters ---------------------------------------------------------


@PRESETS
def test_adapters_stay_within_their_limit_and_share_no_state(preset: str) -> None:
    """One document under two adapters: the keys differ, so nothing is shared; a branch
    of the adapter that does not fit this round waits, and others pass it.
    """
    driver = Driver.on(preset=preset)
    driver.scheduler.lora_config = LoRAConfig(max_loras=1, max_lora_rank=8)
    adapter_of = {}
    for number in (1, 2, 1, 2):
        name = f"g{len(adapter_of)}"
        tails = [tokens(f"{name} {index}", 9) for index in range(3)]
        group = make_group(driver.scheduler, name, tokens("d", 300), tails)
        for request in group:
            lora = LoRARequest(f"adapter-{number}", number, "/nowhere")
            adapted = make_request(
                driver.scheduler,
                request.request_id,
                request.prompt_token_ids,
                extra_args=request.sampling_params.extra_args,
                prompt_rows=request.sampling_params.prompt_logprobs is not None,
                lora_request=lora,
            )
            adapter_of[request.request_id] = number
            driver.send(adapted)
    driver.run()
    for round_ in driver.rounds:
        assert len({adapter_of[name] for name in round_.scheduled}) == 1
    cold = {name for name in adapter_of if not driver.cached_tokens(name)}
    assert {adapter_of[name] for name in cold} == {1, 2}


# --- structured outputs ---------------------------------------------------------


class AnyText:
    """A grammar that takes every token."""

    def accept_tokens(self, request_id: str, token_ids: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


@PRESETS
@ASYNCHRONOUS
def test_a_grammar_that_is_being_compiled_stops_nobody(
    preset: str, asynchronous: bool
) -> None:
    driver = Driver.on(preset=preset, asynchronous=asynchronous)
    chat = make_request(
        driver.scheduler,
        "chat",
        tokens("chat", 40),
        max_tokens=5,
        structured_outputs=StructuredOutputsParams(regex=".*"),
    )
    compiled: Future[Any] = Future()
    chat.structured_output_request.grammar = compiled
    driver.send(chat)
    send_group(driver, "g")
    for _ in range(20):
        driver.step()
    assert all(driver.finished(f"g-{index}") for index in range(4))
    assert not driver.finished("chat")
    compiled.set_result(AnyText())
    driver.run()
    assert len(driver.answers["chat"]) == 5


# --- streaming input ---------------------------------------------------------


@PRESETS
def test_a_session_goes_on_with_more_input(preset: str) -> None:
    """vLLM's streaming input: one id, one cache, prompts that come in pieces."""
    driver = Driver.on(preset=preset)
    scheduler = driver.scheduler
    first = make_request(scheduler, "session", tokens("one", 100), resumable=True)
    driver.send(first)
    send_group(driver, "g")
    for _ in range(12):
        driver.step()
    assert scheduler.num_waiting_for_streaming_input == 1
    assert len(driver.answers.pop("session")) == 1
    more = make_request(scheduler, "session", tokens("two", 60), resumable=True)
    scheduler.add_request(more)
    send_group(driver, "h")
    for _ in range(12):
        driver.step()
    assert len(driver.answers.pop("session")) == 1
    assert driver.finished("h-3")
    driver.aborted.add("session")  # vLLM ends a session as if it were aborted
    scheduler.add_request(make_request(scheduler, "session", tokens("end", 1)))
    driver.run()


# --- pause, resume, reset ---------------------------------------------------------


@PRESETS
@ASYNCHRONOUS
@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_paused_and_resumed(preset: str, asynchronous: bool, state: PauseState) -> None:
    driver = Driver.on(preset=preset, asynchronous=asynchronous)
    send_group(driver, "running", 600)
    for _ in range(2):
        driver.step()
    driver.scheduler.set_pause_state(state)
    send_group(driver, "new", 600)
    for _ in range(40):
        driver.step()
    assert not any(
        name.startswith("new") for r in driver.rounds for name in r.scheduled
    )
    driver.scheduler.set_pause_state(PauseState.UNPAUSED)
    driver.run()


@PRESETS
@pytest.mark.parametrize("turns", range(1, 8))
def test_reset_of_the_prefix_cache_in_mid_group(preset: str, turns: int) -> None:
    """All running requests lose their blocks; parked consumers are not forgotten, and
    nobody finds what was thrown away (the shadow worker looks).
    """
    driver = Driver.on(preset=preset, block_size=32, token_budget=64, rows=4)
    send_group(driver, "g", 150)
    send_chat(driver, "chat")
    for _ in range(turns):
        driver.step()
    assert driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    send_group(driver, "h", 150)
    driver.run()


# --- a KV connector ---------------------------------------------------------


@pytest.mark.parametrize("preset", ["radix", "radixflow+"])
def test_with_a_kv_connector_the_schedule_is_native(
    preset: str, tmp_path: Path
) -> None:
    """Its hits come from elsewhere, which no state check of ours knows of.

    Of the connectors that run without a GPU none takes a hybrid model; vLLM refuses
    them itself.
    """
    schedules = []
    for native in (True, False):
        driver = Driver.on(
            preset=preset,
            native=native,
            connector=str(tmp_path),
            recurrent_groups=0,
            match_unit=None,
        )
        for name in "gh":
            send_group(driver, name, 300, likelihood=False)
        send_chat(driver, "chat")
        driver.run()
        schedules.append([round_.scheduled for round_ in driver.rounds])
    assert schedules[0] == schedules[1]


# --- data parallel ---------------------------------------------------------


def test_a_rank_that_may_not_prefill_this_step_does_not() -> None:
    """Data-parallel ranks take turns at prefills; the flag goes through to vLLM."""
    driver = Driver.on()
    send_group(driver, "g")
    planned = driver.scheduler.schedule(throttle_prefills=True)
    native = Driver.on(native=True)
    send_group(native, "g")
    theirs = native.scheduler.schedule(throttle_prefills=True)
    assert bool(planned.num_scheduled_tokens) == bool(theirs.num_scheduled_tokens)
