"""The replay's tests share one vLLM configuration; making it takes seconds."""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
