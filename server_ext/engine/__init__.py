"""The engine process: vLLM's scheduler with RadixFlow's hooks.

`scheduler` holds the hooks.  `traversal` says who may run, with what `lookup`,
`chunking` and `planner` know; `queue` is the order; `publication`, `pins` and
`block_copy` keep the cache exact; `inspect` and `audit` look on.  `compat` has the
differences between tested vLLM versions.  `plugin` is loaded in every process and lets
the API-server process call the scheduler.
"""
