"""Which simulated cards there are, and which one is current."""

from __future__ import annotations

import threading

from .cards import H100, Card
from .streams import CUDARuntimeError

_cards: list[Card] = [H100]
_state = threading.local()


def set_cards(cards: list[Card]) -> list[Card]:
    """Replace the machine's cards, none of which reaches another's memory; returns the former ones."""
    former, _cards[:] = list(_cards), cards
    _state.__dict__.pop("peers", None)
    return former


def count() -> int:
    return len(_cards)


def card(device: int) -> Card:
    if not 0 <= device < len(_cards):
        raise CUDARuntimeError(
            101, f"cudaErrorInvalidDevice: invalid device ordinal: {device} of {len(_cards)}"
        )
    return _cards[device]


def current() -> int:
    return getattr(_state, "device", 0)


def set_current(device: int) -> None:
    card(device)
    _state.device = device


def enable_peer(device: int) -> None:
    """Let the current card reach the memory of another."""
    card(device)
    pairs = _state.__dict__.setdefault("peers", set())
    if (current(), device) in pairs:
        raise CUDARuntimeError(704, "cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
    pairs.add((current(), device))


class Device:
    """Stands for `cupy.cuda.Device`."""

    def __init__(self, device: int | Device | None = None) -> None:
        self.id: int = current() if device is None else int(device)

    def __enter__(self) -> Device:
        card(self.id)
        _state.__dict__.setdefault("outer", []).append(current())  # of this thread, as with CuPy
        set_current(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        _state.device = _state.outer.pop()

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> Device:
        set_current(self.id)
        return self

    def synchronize(self) -> None:
        card(self.id)

    @property
    def compute_capability(self) -> str:
        major, minor = card(self.id).compute_capability
        return f"{major}{minor}"

    @property
    def attributes(self) -> dict[str, int]:
        return card(self.id).attributes()

    @property
    def mem_info(self) -> tuple[int, int]:
        from .memory import live_bytes

        total = card(self.id).memory_bytes
        return total - live_bytes(self.id), total
