"""Scheduling policy as pure data and arithmetic: no vLLM, torch or web framework."""
