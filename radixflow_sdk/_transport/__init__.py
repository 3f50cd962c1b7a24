"""How a group travels. The only room that imports httpx and tenacity.

`_base` the contract · `_groups` one ``POST /v1/branches`` · `_wire` its messages ·
`_ndjson` its lines · `_completions` a server without the plug-in, `_reads` its rows,
`_boundary` its tokens · `_generate` branches that go on · `_routes` which of them ·
`_http` one server · `_pool` its connections · `_retry` what is missing, sent again ·
`_replicas` which server · `_errors` the wall where foreign exceptions become ours ·
`_redact` what must not get out with them. It must not know templates, scores or
rankings.
"""

from radixflow_sdk._transport._base import Emit, Transport
from radixflow_sdk._transport._groups import HTTPTransport
from radixflow_sdk._transport._pool import HTTPClient
from radixflow_sdk._transport._replicas import Replicas
from radixflow_sdk._transport._retry import RetryingTransport
from radixflow_sdk._transport._routes import connect

__all__ = [
    "Emit",
    "HTTPClient",
    "HTTPTransport",
    "Replicas",
    "RetryingTransport",
    "Transport",
    "connect",
]
