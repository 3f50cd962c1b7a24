"""Every error the SDK raises, as one tree.

    RadixFlowError
    ├── InvalidInputError (also a ValueError)   refused before anything was sent
    ├── APIError                                the server or the connection failed
    │   ├── APIConnectionError                  no connection, or lost before the answer
    │   ├── APITimeoutError                     a timeout passed
    │   ├── ConnectTimeoutError                 both: no connection in time
    │   ├── StreamBrokenError                   the answer began and was cut
    │   ├── InvalidResponseError                the answer breaks the wire's rules
    │   └── APIStatusError                      the server answered with an error status
    │       ├── AuthenticationError             401, 403
    │       ├── ModelNotFoundError              404 for the model
    │       ├── PluginMissingError              404 for the endpoint: no plug-in
    │       ├── ContextTooLongError             422 context_too_long
    │       ├── InvalidRequestError             any other 4xx
    │       ├── TransientRequestError           408, 409, 425: try again
    │       ├── RateLimitError                  429
    │       ├── UnsupportedError                501
    │       └── ServerError                     any other 5xx
    ├── BranchError                             one branch failed on the server
    ├── PartialGroupError                       some branches finished, the rest failed
    ├── ClientClosedError                       the client was closed
    └── WrongLoopError                          the client belongs to another event loop

``retryable`` states whether repeating the request can help. A message is one sentence:
the problem, the value, the advice.
Foreign exceptions are translated in `_transport._errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixflow_sdk._results import GeneratedBranch, ScoredCandidate


class RadixFlowError(Exception):
    """Base of every error of this package."""

    retryable: bool = False


class InvalidInputError(RadixFlowError, ValueError):
    """An argument was refused before anything was sent.

    Attributes:
        field: Name of the argument, with the position where there is one
            (``options[3]``).
        value: The refused value; None where it must not be shown (an API key).
        mentions: Other arguments that the message mentions as ``name=value``.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        value: object | None = None,
        mentions: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.mentions = mentions


class APIError(RadixFlowError):
    """The server or the connection to it failed.

    Attributes:
        request_id: The ``X-Request-ID`` of the failed request, where one was sent.
        group_id: The group that the request belonged to, where there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        request_id: str | None = None,
        group_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.group_id = group_id


class APIConnectionError(APIError):
    """No connection to the server, or it broke before the answer began."""

    retryable = True


class APITimeoutError(APIError):
    """The server took longer than a limit of `Timeouts`."""

    retryable = True


class ConnectTimeoutError(APIConnectionError, APITimeoutError):
    """No connection to the server within `Timeouts.connect`; nothing was sent."""


class StreamBrokenError(APIError):
    """The answer began and was cut before ``group.completed``."""

    retryable = True


class InvalidResponseError(APIError):
    """The server's answer violates the wire."""


class APIStatusError(APIError):
    """The server answered with an error status.

    Attributes:
        status: The HTTP status.
        code: The wire's error code (``context_too_long``), where the server gave one.
        field: Dotted path of the refused field (``branches.3.text``), where given.
        retry_after: Seconds to wait, where the server asked for it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str | None = None,
        field: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        group_id: str | None = None,
    ) -> None:
        super().__init__(message, request_id=request_id, group_id=group_id)
        self.status = status
        self.code = code
        self.field = field
        self.retry_after = retry_after


class AuthenticationError(APIStatusError):
    """The API key is missing or wrong (401, 403)."""


class ModelNotFoundError(APIStatusError):
    """The server does not serve the requested model (404)."""


class PluginMissingError(APIStatusError):
    """The server has no ``/v1/branches``: it runs without the RadixFlow plug-in."""


class ContextTooLongError(APIStatusError):
    """Document, question and option do not fit the model's context (422)."""


class InvalidRequestError(APIStatusError):
    """The server refused the request (another 4xx)."""


class TransientRequestError(APIStatusError):
    """The server temporarily refused the request (408, 409, 425).

    It arrived too slowly, concurrently with another, or too early.
    """

    retryable = True


class RateLimitError(APIStatusError):
    """The server limits the request rate (429)."""

    retryable = True


class UnsupportedError(APIStatusError):
    """The server cannot compute exact log-probabilities (501)."""


class ServerError(APIStatusError):
    """The server failed (another 5xx)."""

    retryable = True


class BranchError(RadixFlowError):
    """One branch failed, with all of its retries.

    Attributes:
        index: Position of the option in ``options``.
        code: The wire's error code (``non_finite_logprob``, ``engine_error`` ...), or
            ``not_answered`` when the group ended before the branch finished.
        request_id: The server's id of the branch, where it has one.
        retryable: As the server reported; an attribute of the instance.
    """

    def __init__(
        self,
        message: str,
        *,
        index: int = -1,
        code: str = "",
        retryable: bool = False,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.index = index
        self.code = code
        self.retryable = retryable
        self.request_id = request_id


class PartialGroupError(RadixFlowError):
    """Some branches of a group failed; the finished ones are kept here.

    Attributes:
        candidates: The finished candidates, in the order of ``options``. They have no
            probability, which needs all candidates. Empty for `stream_candidates`,
            which has yielded them.
        branches: Of `generate_branches`, the finished branches, in the order given.
        failures: One error for each option without a score, or branch without a text,
            in the order given.
        request_id: ``X-Request-ID`` of the last request of the group, where known.
        group_id: The group.
        retryable: Whether every failure is retryable; an attribute of the instance.

    ``__cause__`` is the `APIError` that ended the group, where one did.
    """

    def __init__(
        self,
        message: str,
        *,
        candidates: tuple[ScoredCandidate, ...] = (),
        branches: tuple[GeneratedBranch, ...] = (),
        failures: tuple[BranchError, ...] = (),
        request_id: str | None = None,
        group_id: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.candidates = candidates
        self.branches = branches
        self.failures = failures
        self.request_id = request_id
        self.group_id = group_id


class ClientClosedError(RadixFlowError):
    """The client was closed before or during the call."""


class WrongLoopError(RadixFlowError):
    """The client is used in another event loop than before; nothing was sent."""
