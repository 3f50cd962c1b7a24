"""RadixFlow: given this document, which of these candidates?

Everything public is exported here, but for the fakes in `radixflow_sdk.testing`.
"""

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, Timeouts
from radixflow_sdk._events import GroupEnded, RawResponse, RequestEnded, RequestSent
from radixflow_sdk._frames import to_frame
from radixflow_sdk._many import Outcomes
from radixflow_sdk._prompt import Template
from radixflow_sdk._requests import GenerationRequest, ScoreRequest
from radixflow_sdk._results import (
    Candidate,
    GeneratedBranch,
    GenerationResult,
    GroupUsage,
    LabelScore,
    LetterChoice,
    LetterResult,
    Outcome,
    Progress,
    RankedPassage,
    RerankResult,
    ScoredCandidate,
    ScoreResult,
    TokenScore,
    Usage,
)
from radixflow_sdk._transport import Transport
from radixflow_sdk.exceptions import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BranchError,
    ClientClosedError,
    ConnectTimeoutError,
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
    TransientRequestError,
    UnsupportedError,
    WrongLoopError,
)
from radixflow_sdk.sync import RadixFlow

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "AuthenticationError",
    "BranchError",
    "Candidate",
    "ClientClosedError",
    "ConnectTimeoutError",
    "ContextTooLongError",
    "GeneratedBranch",
    "GenerationRequest",
    "GenerationResult",
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
    "RankedPassage",
    "RateLimitError",
    "RawResponse",
    "RequestEnded",
    "RequestSent",
    "RerankResult",
    "RetryPolicy",
    "ScoreRequest",
    "ScoreResult",
    "ScoredCandidate",
    "ServerError",
    "StreamBrokenError",
    "Template",
    "Timeouts",
    "TokenScore",
    "TransientRequestError",
    "Transport",
    "UnsupportedError",
    "Usage",
    "WrongLoopError",
    "to_frame",
]
