"""The engine process: the only importer of ``vllm.v1``.

`compat` knows which vLLM versions are tested and hides their differences, `scheduler`
is the thin subclass, `plugin` opens a door to it for the API-server process.
"""
