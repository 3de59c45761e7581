"""Runs CUDA kernels and their launch code on the CPU: a stand-in for `cupy`, one fiber per CUDA thread."""

from .cards import CARDS, Card
from .fake_cupy import cupy, in_place_of_cupy, simulated_cuda
from .launch import KernelError
from .memory import GuardError

__all__ = ["CARDS", "Card", "GuardError", "KernelError", "cupy", "in_place_of_cupy", "simulated_cuda"]
