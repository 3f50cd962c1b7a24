"""The vLLM extension of RadixFlow: scheduler class, endpoint plug-in and launcher.

The modules, in the direction that the data flows::

    serve -> (vLLM) -> api: one request -> engine: the scheduler's hooks -> policy

`serve` starts vLLM with what `model` finds out about the checkpoint, and `self_test`
asks the running server whether it is exact.  `api` runs in the API-server process,
`engine` in the engine process, `policy` is pure and imports neither vLLM nor FastAPI.
`replay` runs the scheduler without a model; `demo` holds the bundled checkpoint.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
