"""What the routes know of the server they run in.

Built once, when vLLM initialises the endpoint plug-in; read by every request.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from argparse import Namespace
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from vllm.v1.engine.exceptions import EngineDeadError

from server_ext.api.adapters import Adapters
from server_ext.api.drain import draining_refusal
from server_ext.api.encoders import Encoders
from server_ext.api.group import Load, Route
from server_ext.api.progress import Groups
from server_ext.api.protocol import BranchesRequest, RequestRefused, shortened
from server_ext.api.tokens import GroupPrompts
from server_ext.policy.config import ADMIN_KEY_VARIABLE, POLICIES
from server_ext.policy.fairness import Window

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.protocol import EngineClient

__all__ = ["Server"]

MOST_IDS = 128
"""vLLM's own bound on ``logprob_token_ids``."""


@dataclass
class Server:
    """The engine, the model's limits, and the memory that requests share.

    Attributes:
        engine: vLLM's client.
        encoders: they encode requests with the model's tokenizer.
        models: served model names.
        vocabulary: number of token ids.
        prompt_limit: maximum tokens of a prompt (one is left to generate).
        max_labels: maximum labels of a row.
        route: how exact rows are read here.
        unsupported: why no exact row can be read here, or None.
        ranks: data-parallel ranks.
        startup: the scheduler's snapshot at start.
        load: what groups have under way in the engine.
        admin_key: the key of the operators' routes; None: they have none of their own.
    """

    engine: EngineClient
    encoders: Encoders
    models: tuple[str, ...]
    vocabulary: int
    prompt_limit: int
    max_labels: int
    route: Route
    unsupported: str | None
    ranks: int
    startup: dict[str, Any]
    load: Load
    admin_key: str | None = field(default=None, repr=False)
    adapters: Adapters = field(default_factory=Adapters)
    groups: Groups = field(default_factory=Groups)
    # One page of the engine's lists at a time, across all readers.
    pages: anyio.Lock = field(default_factory=anyio.Lock)
    # One at a time: large bodies that are read at once only hold each other up.
    readers: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(1)
    )

    @classmethod
    async def build(cls, engine: EngineClient, args: Namespace) -> Server:
        """Ask the engine what it is."""
        config = engine.vllm_config
        model = config.model_config
        startup = await _utility(engine, "radixflow_snapshot")
        ranks = config.parallel_config.data_parallel_size
        labels = model.max_logprobs if model.max_logprobs >= 0 else MOST_IDS
        return cls(
            engine=engine,
            encoders=Encoders(engine.renderer.get_tokenizer()),
            models=tuple(args.served_model_name or (args.model,)),
            vocabulary=model.get_vocab_size(),
            prompt_limit=model.max_model_len - 1,
            max_labels=labels,
            route=Route(
                ours="counters" in startup,
                connector=config.kv_transfer_config is not None,
                ids_a_read=min(labels, MOST_IDS),
                by_ids=_reads_by_ids(config),
            ),
            unsupported=_why_not(model.logprobs_mode, model.max_logprobs),
            ranks=ranks,
            startup=startup,
            load=_load(config),
            admin_key=os.environ.get(ADMIN_KEY_VARIABLE) or None,
        )

    def check(self, request: BranchesRequest, adapters: Collection[str] = ()) -> str:
        """The served name of the request's model, or of an adapter.

        Raises:
            RequestRefused: another model, too many labels, or a server that cannot
                give exact log-probabilities.
        """
        if self.unsupported is not None:
            raise RequestRefused(501, "unsupported", self.unsupported)
        served = (*self.models, *adapters)
        if request.model is not None and request.model not in served:
            raise RequestRefused(
                404,
                "model_not_found",
                f"model {shortened(request.model)} is not served here: use one of "
                f"{', '.join(served)}",
                "model",
            )
        if len(request.labels or ()) > self.max_labels:
            raise RequestRefused(
                422,
                "invalid_request",
                f"labels: {len(request.labels or ())} labels, and this server reads "
                f"{self.max_labels} a row: raise its --max-logprobs or send fewer",
                "labels",
            )
        if self.engine.errored:
            raise RequestRefused(503, "engine_dead", "the engine has ended: restart it")
        return request.model or self.models[0]

    def check_operator(self, authorization: str | None) -> None:
        """Let operators alone pass, where they have a key of their own.

        Raises:
            RequestRefused: the request has another key, or none.
        """
        if self.admin_key is None:
            return
        scheme, _, key = (authorization or "").partition(" ")
        wanted = self.admin_key.encode()
        if scheme.lower() != "bearer" or not secrets.compare_digest(
            key.encode(), wanted
        ):
            raise RequestRefused(
                403,
                "operators_only",
                "this route is for operators: send the server's admin key as "
                "Authorization: Bearer",
            )

    def home(self, prompts: GroupPrompts, salt: str | None) -> int | None:
        """The rank whose cache knows a group's document; None where there is one rank.

        vLLM's own balancer would spread a group's branches over all ranks, each of
        which would compute the document.
        """
        if self.ranks == 1:
            return None
        document = array("q", prompts.context[: prompts.document_tokens])
        digest = hashlib.sha256(repr(salt).encode() + b"\0" + document.tobytes())
        return int.from_bytes(digest.digest()[:8]) % self.ranks

    async def snapshot(self) -> dict[str, Any]:
        """The scheduler's snapshot now."""
        return await _utility(self.engine, "radixflow_snapshot")

    async def rounds_page(self, after: int) -> dict[str, Any]:
        """A page of the rounds after number `after` that the scheduler still keeps."""
        async with self.pages:
            page: dict[str, Any] = await _utility(
                self.engine, "radixflow_rounds", after
            )
        return page

    async def arrivals_page(self, after: int, start: int) -> dict[str, Any]:
        """A page of the arrivals after round `after` that the scheduler still keeps.

        Raises:
            RequestRefused: the scheduler is not ours.
        """
        async with self.pages:
            page: dict[str, Any] | None = await _utility(
                self.engine, "radixflow_arrivals", after, start
            )
        if page is None:
            raise _not_ours()
        return page

    async def switch_policy(self, body: bytes) -> str:
        """Switch to the policy that `body` names.

        Raises:
            RequestRefused: no such policy, requests in flight, or not our scheduler.
        """
        try:
            name = json.loads(body)["name"]
        except (ValueError, KeyError, TypeError, RecursionError):
            name = None
        if not isinstance(name, str) or name not in POLICIES:
            raise RequestRefused(
                422,
                "invalid_request",
                f"name: {shortened(name)} is no policy: choose one of "
                f"{', '.join(POLICIES)}",
                "name",
            )
        if not self.route.ours:
            raise _not_ours()
        switched = await _utility(self.engine, "radixflow_set_policy", name)
        if isinstance(switched, str):
            raise RequestRefused(422, "invalid_request", f"name: {switched}", "name")
        if not switched:
            raise RequestRefused(
                409, "busy", "requests are in flight: switch when the server is idle"
            )
        return name


def _load(config: VllmConfig) -> Load:
    """Rounds as the configuration bounds them; priorities overrule fair shares."""
    scheduler, parallel = config.scheduler_config, config.parallel_config
    ranks = parallel.data_parallel_size
    rows = scheduler.max_num_seqs * ranks
    if scheduler.policy != "fcfs":
        return Load(rows)
    # Rounds that run at a time, and two to choose the next one from while a busy API
    # server sends more.
    running = 2 if scheduler.async_scheduling else 1
    rounds = 2 + max(running, parallel.pipeline_parallel_size)
    tokens = scheduler.max_num_batched_tokens * ranks
    return Load(rows, Window(tokens=tokens, requests=rows, rounds=rounds))


def _not_ours() -> RequestRefused:
    return RequestRefused(
        501,
        "unsupported",
        "this server runs another scheduler: start it with `radixflow serve`",
    )


def _reads_by_ids(config: VllmConfig) -> bool:
    """Whether the engine runs the V2 model runner, and it can score chosen rows."""
    fast_prefill = config.cache_config.kv_sharing_fast_prefill  # skips their rows
    return bool(config.use_v2_model_runner and not fast_prefill)


def _why_not(mode: str, most: int) -> str | None:
    """Why no exact row can be read, or None."""
    if mode != "raw_logprobs":
        return f"--logprobs-mode is {mode}: exact scores need raw_logprobs"
    if most == 0:
        return "--max-logprobs is 0: scores need 1 or more"
    return None


async def _utility(engine: EngineClient, method: str, *args: Any) -> Any:
    core: Any = engine.engine_core
    try:
        return await core.call_utility_async(method, *args)
    except EngineDeadError as error:
        raise RequestRefused(
            503, "engine_dead", "the engine has ended: restart the server"
        ) from error
    except Exception as error:
        # vLLM has no class of its own for what the engine refuses from its end on.
        if not str(error).endswith("Server shutting down"):
            raise
        raise draining_refusal() from error
