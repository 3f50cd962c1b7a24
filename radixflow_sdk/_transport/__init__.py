"""How a group travels. The only room that imports httpx and tenacity.

`_base` the contract · `_groups` one ``POST /v1/branches`` · `_wire` its messages ·
`_ndjson` its lines · `_retry` what is missing, sent again · `_errors` the wall where
foreign exceptions become ours. It must not know templates, scores or rankings.
"""

from radixflow_sdk._transport._base import Transport
from radixflow_sdk._transport._groups import HTTPClient, HTTPTransport
from radixflow_sdk._transport._retry import RetryingTransport

__all__ = ["HTTPClient", "HTTPTransport", "RetryingTransport", "Transport"]
