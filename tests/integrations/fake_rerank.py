"""The rerank routes on a fake engine, at the port of the first argument."""

import sys

import uvicorn

from server_ext.api.rerank import TEMPLATES, Template
from tests.server.fake_engine import FakeEngine, serve
from tests.server.test_rerank import relevance

if __name__ == "__main__":
    TEMPLATES["plain"] = Template("", "?", ("y", "n"))  # it has a token a letter
    app = serve(FakeEngine(relevance))
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
