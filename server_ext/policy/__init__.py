"""Scheduling policy, pure: data and arithmetic, without vLLM, torch or a web framework.

`config` says what a policy is, `hints` what a request says about itself, `tree` where
prompts part, `admission` who may enter, `readiness` who is ready; `counters` and
`arrivals` are what is kept of it.
"""
