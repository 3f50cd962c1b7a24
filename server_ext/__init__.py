"""The vLLM extension of RadixFlow: scheduler class, endpoint plug-in and launcher.

The rooms, in the direction that the data flows::

    serve -> (vLLM) -> api: request -> engine: hints -> readiness -> native scheduler

`config`, `hints`, `readiness` and `metrics` are pure and import neither vLLM nor
FastAPI.  `engine` runs in the engine process, `api` in the API-server process.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
