"""Names that the launcher and the engine share, without importing vLLM."""

__all__ = ["REFUSAL_FILE", "SCHEDULER"]

SCHEDULER = "server_ext.engine.scheduler.RadixFlowScheduler"
"""What ``vllm serve --scheduler-cls`` takes."""

REFUSAL_FILE = "RADIXFLOW_REFUSAL_FILE"
"""Environment variable: a file where the engine says why it refused to start."""
