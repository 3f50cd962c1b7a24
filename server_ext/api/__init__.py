"""The API-server process: the only importer of FastAPI and Starlette.

`plugin` is what vLLM loads and `router` has the routes.  A request passes through
`body`, `protocol`, `encoders` (it runs `tokens` and `context`), `group` and `scoring`.
`server` holds what the routes share, `listing` sends long lists, and `drain` refuses
requests once the server shuts down.
"""
