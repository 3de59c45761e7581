"""
CKKS error by level
===================

CKKS computes approximately. How many bits of a result are right depends on the scale, on n, and on what is
computed. This program squares numbers of size 1 again and again, at three scales, and draws the error beside
theory.

What a scale and a level are: :doc:`/tutorials/ckks`.
"""

import math

import numpy as np

from polygpu.examples.ckks import CKKS

# %%
# Measure, and predict
# --------------------
#
# If z has the error e, z^2 has the error 2 z e, for numbers of size 1 twice as much. Then `rescale` rounds:
# an error of at most 1/2 in each coefficient of c_0 and c_1. The latter is multiplied by the secret, which
# has 2n/3 coefficients that are not zero. A slot adds up n coefficients.

measured, predicted = {}, {}
for bits in (30, 35, 40):
    scheme = CKKS(n=16384, first=bits + 10, bits=bits, depth=5, size=2)
    n = scheme.n
    keys = scheme.keygen(b"a seed, which in earnest is random")
    z = np.exp(2j * np.pi * np.random.default_rng(1).random(n // 2))
    c = scheme.encrypt(keys.public, z, b"another seed")

    errors, theory = [], [scheme.fresh_deviation()]
    while True:
        errors.append(float(np.sqrt(np.mean(abs(scheme.decrypt(keys.secret, c) - z) ** 2))))
        if c.limbs == 1:
            break
        c, z = scheme.multiply(keys, c, c), z * z
        rounding = math.sqrt(n * (1 + 2 * n / 3) / 12) / c.scale
        theory.append(math.hypot(2 * theory[-1], rounding))
    measured[bits], predicted[bits] = errors, theory
    print(f"scale 2^{bits}: " + ", ".join(f"2^{math.log2(e):.1f}" for e in errors))
    assert all(0.8 < a / b < 1.25 for a, b in zip(errors, theory, strict=True))

# %%
# Draw
# ----

import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for bits in measured:
    (points,) = axis.plot(np.log2(measured[bits]), "o", label=f"scale 2^{bits}")
    axis.plot(np.log2(predicted[bits]), "-", color=points.get_color())
axis.set(xlabel="squarings (a level each)", ylabel="log2 of a slot's error", title="lines: theory")
axis.legend()
plt.show()

# %%
# Each squaring doubles the error. A scale of five bits more gives five bits more, and takes five bits of
# modulus at every level.
