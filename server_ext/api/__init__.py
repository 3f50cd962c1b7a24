"""The API-server process: the only importer of FastAPI and Starlette.

`plugin` is what vLLM loads, `router` speaks HTTP, `protocol` is the wire's request,
`tokens` finds the token boundary, `group` runs the branches, `scoring` reads rows.
"""
