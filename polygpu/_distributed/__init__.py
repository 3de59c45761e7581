"""Values on several devices of one host. Spread divides batches or limbs; Divided divides coefficients."""

from .devices import Devices, devices
from .divided import Divided
from .spread import Spread

__all__ = ["Devices", "Divided", "Spread", "devices"]
