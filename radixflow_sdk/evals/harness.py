"""The model ``radixflow`` of lm-evaluation-harness: the options of a context together.

`RadixFlowLM` is lm-eval's own ``local-completions`` with one thing changed: requests
that share a context are one group, so the context is computed once and only the
options' rows come back. A context is sent in parts: few-shot examples, and whatever
else several contexts begin with, end a part. Prompts, windows, truncation and
generation stay lm-eval's, and so do the numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from lm_eval import utils
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.api.registry import model_registry
from lm_eval.models.openai_completions import LocalCompletionsAPI
from tqdm import tqdm

from radixflow_sdk._config import RetryPolicy, Settings, Timeouts, read_settings
from radixflow_sdk._requests import MAX_BRANCHES, ScoreRequest
from radixflow_sdk._results import Candidate
from radixflow_sdk.evals.prefixes import Tokens, split_contexts
from radixflow_sdk.exceptions import (
    InvalidInputError,
    PluginMissingError,
    RadixFlowError,
    UnsupportedError,
)
from radixflow_sdk.sync import RadixFlow

__all__ = ["NAME", "RadixFlowLM", "main", "register"]

NAME = "radixflow"

MADE_BY = "radixflow: made by"
"""Key of a cache under which its settings are; lm-eval's own keys are digests."""

MAX_SHOWN = 60
"""Characters of a request that an error shows."""

logger = logging.getLogger("radixflow")

Answer = tuple[float, bool]
Pair = tuple[tuple[str, str] | None, list[int], list[int]]
"""lm-eval's unit: cache key (None in a rolling window), context, continuation."""


class RequestPlace(int):
    """Position of a request that cannot be scored, among lm-eval's requests."""


def register() -> None:
    """Make the model known to this process's lm-eval, which has no entry points."""
    if NAME not in model_registry:
        model_registry.register(NAME, target=f"{__name__}:{RadixFlowLM.__name__}")


def main(argv: Sequence[str]) -> None:
    """lm-eval's own command line, with the model known and, unless named, chosen.

    Args:
        argv: What follows ``lm-eval``.
    """
    register()
    words = list(argv)
    if words[:1] not in (["ls"], ["validate"]) and not _MODEL_FLAGS & {
        word.partition("=")[0] for word in words
    }:
        words += ["--model", NAME]
    sys.argv = ["lm-eval", *words]
    cli_evaluate()


_MODEL_FLAGS = {"--model", "-M", "--config", "-C", "--help", "-h"}


class RadixFlowLM(LocalCompletionsAPI):  # type: ignore[misc] # lm_eval is untyped
    """Scores lm-eval's requests on a RadixFlow server.

    Takes the arguments of ``local-completions``; these differ:

    Args:
        base_url: The server, with or without ``/v1/completions``; None: the
            environment's ``RADIXFLOW_BASE_URL``, else ``http://127.0.0.1:8000``.
        model: A served model; None: the server's first.
        num_concurrent: Groups (and generations) under way at a time.
        max_length: Most tokens of a prompt; None: what the server was started with.
        timeout: Seconds for one group, with all its retries.
        cache_salt: Isolates the server's prefix cache.

    Raises:
        InvalidInputError: A setting is not usable.
        APIError: The server could not be asked what it serves.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str | None = None,
        pretrained: str | None = None,
        num_concurrent: int = 16,
        max_length: int | None = None,
        timeout: int = 600,
        max_retries: int = 3,
        verify_certificate: bool = True,
        ca_cert_path: str | None = None,
        cache_salt: str | int | float | None = None,
        **kwargs: Any,
    ) -> None:
        if not verify_certificate or ca_cert_path is not None:
            raise InvalidInputError(
                "verify_certificate and ca_cert_path do not reach the scoring; name "
                "the certificates in the environment's SSL_CERT_FILE.",
                field="ca_cert_path",
                value=ca_cert_path,
            )
        self._settings = read_settings(
            base_url=None if base_url is None else _root(base_url),
            timeout=Timeouts(total=float(timeout)),
            retry=RetryPolicy(attempts=int(max_retries)),
            max_connections=int(num_concurrent),
        )
        # lm-eval reads digits in --model_args as numbers.
        self._cache_salt = None if cache_salt is None else str(cache_salt)
        name = model or pretrained
        name = None if name is None else str(name)
        if name is None or max_length is None:
            first, longest = _model_and_length(self._settings)
            name = name or first
            max_length = longest if max_length is None else max_length
        if not isinstance(max_length, int):
            raise InvalidInputError(
                f"max_length is {max_length!r}, and the server does not tell its own; "
                "give a number of tokens.",
                field="max_length",
                value=max_length,
            )
        super().__init__(
            base_url=f"{self._settings.base_urls[0]}/v1/completions",
            model=name,
            num_concurrent=num_concurrent,
            max_length=max_length,
            timeout=timeout,
            max_retries=max_retries,
            **kwargs,
        )

    @cached_property
    def api_key(self) -> str:
        """The environment's ``RADIXFLOW_API_KEY``, else what lm-eval takes."""
        return self._settings.api_key or super().api_key

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Take lm-eval's cache of answers, unless other settings filled it.

        Raises:
            InvalidInputError: They did; its keys are the requests' texts alone.
        """
        cache = cache_hook.dbdict
        if cache is not None:
            made_by = {
                "model": self.model,
                "max_length": self.max_length,
                "cache_salt": _digest(self._cache_salt),
            }
            had = cache.get(MADE_BY) or ({} if len(cache) else made_by)
            for name, value in made_by.items():
                if name not in had or had[name] != value:
                    raise InvalidInputError(
                        f"The cache of --use_cache has answers of another {name} "
                        f"({had.get(name, 'unknown')}; this run has {value}); give "
                        "another PATH.",
                        field="use_cache",
                    )
            cache[MADE_BY] = made_by
        super().set_cache_hook(cache_hook)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[Answer]:
        """lm-eval's, with a request that cannot be scored named as its task has it.

        Raises:
            InvalidInputError: A request cannot be scored.
            RadixFlowError: A group failed.
        """
        try:
            answers = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        except InvalidInputError as error:
            if not isinstance(error.value, RequestPlace):
                raise
            one = requests[error.value]
            raise InvalidInputError(
                f"Task {one.task_name}, document {one.doc_id}, "
                f"{_short(one.args[1])} after {_short(one.args[0])}: {error}",
                field=error.field,
                value=error.value,
            ) from None
        return cast("list[Answer]", answers)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """lm-eval's windows, all of them under way together."""
        texts = [text for (text,) in (request.args for request in requests)]
        windows = [self._windows(text) for text in texts]
        owners = [place for place, own in enumerate(windows) for _ in own]
        left = [len(own) for own in windows]
        sums: list[list[float]] = [[] for _ in texts]

        def note(place: int, answer: Answer) -> None:
            owner = owners[place]
            sums[owner].append(answer[0])
            left[owner] -= 1
            if not left[owner]:
                whole = math.fsum(sums[owner])
                key = (texts[owner],)
                self.cache_hook.add_partial("loglikelihood_rolling", key, whole)

        pairs = [(None, *window) for own in windows for window in own]
        self._score(pairs, note, disable_tqdm=disable_tqdm)
        return [math.fsum(own) for own in sums]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = utils.get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,
            context_len=1,
        )
        return [utils.make_disjoint_window(window) for window in windows]

    def _loglikelihood_tokens(
        self, requests: list[Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(requests)

        def note(place: int, answer: Answer) -> None:
            answers[place] = answer
            key = requests[place][0]
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answer)

        self._score(requests, note, disable_tqdm=disable_tqdm)
        return cast("list[Answer]", answers)

    def _score(
        self,
        requests: Sequence[Pair],
        note: Callable[[int, Answer], None],
        *,
        disable_tqdm: bool,
    ) -> None:
        """Hand each request's answer to `note`, in the order they come in."""
        bar = tqdm(total=len(requests), desc="Scoring options", disable=disable_tqdm)
        with bar:

            def tell(places: Iterable[int], answer: Answer) -> None:
                for place in places:
                    note(place, answer)
                    bar.update()

            groups = group_by_context(requests, self.max_length)
            parts = split_contexts(_texts(groups, requests), self.tok_encode)
            for group in groups:
                # What lm-eval's sum over no token says; no server has to be asked.
                tell(group.options.pop((), ()), (0.0, True))
            asked = [group for group in groups if group.options]
            with self._client() as client:
                wanted = [_request(group, parts) for group in asked]
                for outcome in client.score_many(wanted):
                    if outcome.error is not None:
                        raise _unfinished(outcome.error, bar.n, bar.total)
                    places = list(asked[outcome.index].options.values())
                    for candidate in outcome.unwrap().candidates:
                        tell(places[candidate.index], _answer(candidate))

    def _client(self) -> RadixFlow:
        client = RadixFlow(
            self._settings.base_urls,
            model=self.model,
            timeout=self._settings.timeouts,
            retry=self._settings.retry,
            max_connections=self._settings.max_connections,
            cache_salt=self._cache_salt,
        )
        return client.with_options(extra_headers=self._header or {})


@dataclass(frozen=True, slots=True)
class ContextGroup:
    """One context and what lm-eval wants scored after it.

    Attributes:
        context: Its tokens, 1 or more.
        options: For each distinct continuation, the positions of its requests.
    """

    context: Tokens
    options: dict[Tokens, list[int]]


def group_by_context(requests: Sequence[Pair], max_length: int) -> list[ContextGroup]:
    """Requests that share a context, together; contexts that begin alike, neighbours.

    A prompt over `max_length` tokens loses its beginning, as in lm-eval.

    Raises:
        InvalidInputError: A continuation leaves no room for a context token.
    """
    groups: dict[Tokens, dict[Tokens, list[int]]] = {}
    cut = 0
    for place, (_, context, continuation) in enumerate(requests):
        room = max_length - len(continuation)
        if room < 1 or not context:
            raise InvalidInputError(
                f"Request {place} has {len(context)} context tokens and "
                f"{len(continuation)} to score, and a prompt may have {max_length}; at "
                "least one token must come before what is scored.",
                field=f"requests[{place}]",
                value=RequestPlace(place),
            )
        cut += len(context) > room
        options = groups.setdefault(tuple(context[-room:]), {})
        options.setdefault(tuple(continuation), []).append(place)
    if cut:
        logger.warning(
            "%d of %d prompts are over max_length=%d tokens and lose their beginning",
            cut,
            len(requests),
            max_length,
        )
    return [
        ContextGroup(context, dict(part))
        for context, options in sorted(groups.items())
        for part in _parts(list(options.items()))
    ]


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def _parts(
    options: list[tuple[Tokens, list[int]]],
) -> Iterable[list[tuple[Tokens, list[int]]]]:
    for start in range(0, len(options), MAX_BRANCHES):
        yield options[start : start + MAX_BRANCHES]


def _texts(
    groups: Iterable[ContextGroup], requests: Sequence[Pair]
) -> dict[Tokens, str]:
    """The contexts' texts; a rolling window has none."""
    keys = {
        group.context: requests[next(iter(group.options.values()))[0]][0]
        for group in groups
    }
    return {context: key[0] for context, key in keys.items() if key is not None}


def _request(
    group: ContextGroup, parts: Mapping[Tokens, Sequence[Tokens]]
) -> ScoreRequest:
    document = parts.get(group.context, group.context)
    return ScoreRequest(document=document, options=list(group.options))


def _answer(candidate: Candidate) -> Answer:
    greedy = candidate.is_greedy
    if greedy is None:
        raise UnsupportedError(
            "The server does not say whether an option is what greedy decoding would "
            "write, which lm-eval asks for; use the server of this RadixFlow version."
        )
    return candidate.scores["sum"], greedy


def _unfinished(error: RadixFlowError, done: int, total: int) -> RadixFlowError:
    error.add_note(
        f"{done} of {total} requests are done. With --use_cache PATH they are kept, "
        "and the same command goes on from there."
    )
    return error


def _digest(salt: str | None) -> str | None:
    """What tells a salt from another one without telling it."""
    return None if salt is None else hashlib.sha256(salt.encode()).hexdigest()[:16]


def _root(base_url: str) -> str:
    url = base_url.rstrip("/")
    for path in ("/v1/completions", "/v1/branches"):
        url = url.removesuffix(path)
    return url


def _model_and_length(settings: Settings) -> tuple[str, int | None]:
    """The server's first model, and the most tokens that a prompt may have."""
    served: Mapping[str, Any] = {}
    with RadixFlow(
        settings.base_urls, timeout=settings.timeouts, retry=settings.retry
    ) as client:
        first, *_ = client.models()
        with contextlib.suppress(PluginMissingError):
            served = client.stats().get("settings") or {}
    longest = served.get("max_model_len")
    return first, longest if isinstance(longest, int) else None
