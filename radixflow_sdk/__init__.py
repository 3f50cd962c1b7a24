"""RadixFlow: given this document, which of these candidates?

The door: everything public is named here. It must not hold code. Users' tests find a
transport without a server in `radixflow_sdk.testing`.
"""

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, Timeouts
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
)
from radixflow_sdk.sync import RadixFlow
from radixflow_sdk.types import (
    Candidate,
    GroupUsage,
    LabelScore,
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
    "Candidate",
    "ClientClosedError",
    "ContextTooLongError",
    "GroupUsage",
    "InvalidInputError",
    "InvalidRequestError",
    "InvalidResponseError",
    "LabelScore",
    "ModelNotFoundError",
    "PartialGroupError",
    "PluginMissingError",
    "RadixFlow",
    "RadixFlowClient",
    "RadixFlowError",
    "RateLimitError",
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
]
