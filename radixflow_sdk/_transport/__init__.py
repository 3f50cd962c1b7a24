"""How a group travels: the only importer of httpx and tenacity.

`_base` the contract · `_retry` sends again what is missing · `_replicas` which server ·
`_server` one server, and which route · `_branches` one ``POST /v1/branches``, `_wire`
its messages, `_ndjson` its lines · `_completions` scores without the plug-in, `_reads`
their rows, `_boundary` their tokens · `_generate` generated text · `_http` requests and
connections · `_errors` foreign exceptions translated · `_redact` secrets.
"""

from radixflow_sdk._transport._base import Emit, Transport
from radixflow_sdk._transport._http import HTTPClient
from radixflow_sdk._transport._replicas import Replicas
from radixflow_sdk._transport._retry import RetryingTransport
from radixflow_sdk._transport._server import ServerTransport, connect

__all__ = [
    "Emit",
    "HTTPClient",
    "Replicas",
    "RetryingTransport",
    "ServerTransport",
    "Transport",
    "connect",
]
