"""How launches are simulated: environment variables, overridden inside `simulated_cuda(...)`."""

from __future__ import annotations

import os
from dataclasses import dataclass

ORDERS = {"forward": 0, "reverse": 1, "random": 2}


@dataclass
class Settings:
    """A launch starts `concurrent_blocks` blocks together; more start only while all of those spin."""

    order: str = "forward"
    seed: int = 0
    concurrent_blocks: int = 1

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}, must be one of {', '.join(ORDERS)}")


def from_environment() -> Settings:
    """CUDASIM_ORDER (forward, reverse, random), CUDASIM_SEED and CUDASIM_BLOCKS."""
    return Settings(
        order=os.environ.get("CUDASIM_ORDER", "forward"),
        seed=int(os.environ.get("CUDASIM_SEED", "0")),
        concurrent_blocks=int(os.environ.get("CUDASIM_BLOCKS", "1")),
    )
