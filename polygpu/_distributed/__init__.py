"""Values on several devices of one host: divided by batch or limbs (Spread), or by coefficients (Divided)."""

from .devices import Devices, devices
from .divided import Divided
from .spread import Spread

__all__ = ["Devices", "Divided", "Spread", "devices"]
