"""How a group reaches a server; the only importer of httpx and tenacity.

`_base` the contract · `_retry` resends the missing branches · `_replicas` which server,
and by which route · `_branches` one ``POST /v1/branches`` · `_completions` scores
without the plug-in, `_boundary` their tokens, `_rows` their logits rows · `_generate`
generated text · `_http` requests, connections and bodies · `_errors` foreign exceptions
translated · `_redact` secrets.
"""

from radixflow_sdk._transport._base import Emit, Transport
from radixflow_sdk._transport._http import HTTPClient, HTTPSession
from radixflow_sdk._transport._replicas import Replicas, ServerTransport, connect
from radixflow_sdk._transport._retry import RetryingTransport

__all__ = [
    "Emit",
    "HTTPClient",
    "HTTPSession",
    "Replicas",
    "RetryingTransport",
    "ServerTransport",
    "Transport",
    "connect",
]
