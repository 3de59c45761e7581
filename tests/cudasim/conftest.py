from .fixtures import simulated_cuda

__all__ = ["simulated_cuda"]
