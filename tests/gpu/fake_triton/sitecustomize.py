"""Run vLLM's Triton kernels on a CPU: put this folder on ``PYTHONPATH``.

vLLM uses Triton on a CPU if Triton has a backend named ``cpu``.  This file registers
one that answers what vLLM and Triton ask of a driver, and turns on Triton's
interpreter, which runs each kernel with NumPy.  Python imports it at its start, so it
works in every process that vLLM starts.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import types
from typing import Any

import triton.backends


class Driver:
    """A Triton driver whose device is the CPU and whose other calls do nothing."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 32)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: Any) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


triton.backends.backends["cpu"] = types.SimpleNamespace(driver=Driver, compiler=None)
