"""RadixFlow: given this document, which of these candidates?

The door: everything public is named here. It must not hold code. Users' tests find a
server that is none in `radixflow_sdk.testing`.
"""

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, Timeouts
from radixflow_sdk._many import Outcomes
from radixflow_sdk._prompt import Template
from radixflow_sdk._transport import Transport
from radixflow_sdk.exceptions import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BranchError,
    ClientClosedError,
    ContextTooLongError,
    InvalidInputError,
    InvalidRequestError,
    InvalidResponseError,
    ModelNotFoundError,
    PartialGroupError,
    PluginMissingError,
    RadixFlowError,
    RateLimitError,
    ServerError,
    StreamBrokenError,
    UnsupportedError,
    WrongLoopError,
)
from radixflow_sdk.sync import RadixFlow
from radixflow_sdk.types import (
    BranchedRequest,
    Candidate,
    GroupEnded,
    GroupUsage,
    LabelScore,
    LetterChoice,
    LetterResult,
    Outcome,
    Progress,
    RequestEnded,
    RequestSent,
    ScoredCandidate,
    ScoreResult,
    TokenScore,
    Usage,
)

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BranchError",
    "BranchedRequest",
    "Candidate",
    "ClientClosedError",
    "ContextTooLongError",
    "GroupEnded",
    "GroupUsage",
    "InvalidInputError",
    "InvalidRequestError",
    "InvalidResponseError",
    "LabelScore",
    "LetterChoice",
    "LetterResult",
    "ModelNotFoundError",
    "Outcome",
    "Outcomes",
    "PartialGroupError",
    "PluginMissingError",
    "Progress",
    "RadixFlow",
    "RadixFlowClient",
    "RadixFlowError",
    "RateLimitError",
    "RequestEnded",
    "RequestSent",
    "RetryPolicy",
    "ScoreResult",
    "ScoredCandidate",
    "ServerError",
    "StreamBrokenError",
    "Template",
    "Timeouts",
    "TokenScore",
    "Transport",
    "UnsupportedError",
    "Usage",
    "WrongLoopError",
]
