"""The engine process: vLLM's scheduler with RadixFlow's hooks.

`scheduler` holds the hooks, `planner` and `publication` what they do to requests and
cache keys, `compat` the differences between tested vLLM versions.  `plugin` is loaded
in every process and lets the API-server process call the scheduler.
"""
