"""Fake servers for the tests of applications that use the SDK.

`FakeTransport` answers inside the client: nothing is sent. `FakeServer` speaks the
wire, as an ASGI app or on a real socket, and fails on demand (`Fault`). Planning,
retries, assembly and ranking are the real ones in both.
"""

from radixflow_sdk.testing._server import FakeRequest, FakeServer, Fault
from radixflow_sdk.testing._transport import FakeTransport

__all__ = ["FakeRequest", "FakeServer", "FakeTransport", "Fault"]
