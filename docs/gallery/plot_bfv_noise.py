"""
Noise of a BFV ciphertext
=========================

Each product of ciphertexts makes the noise larger, by about the same factor each time. When it is larger than
Q/(2t), decryption fails. Who chooses parameters must predict it. This program multiplies a ciphertext with
fresh ones until nothing is left, and draws the measured noise beside two predictions, of which one is wrong.

What a ciphertext and its noise are: :doc:`/tutorials/bfv`.
"""

import math

import numpy as np

from polygpu.examples.bfv import BFV, derive

scheme = BFV(n=8192, t=65537, bits=43, limbs=4, special_bits=45)
n, t, q = scheme.n, scheme.t, scheme.q
keys = scheme.keygen(b"a seed, which in earnest is random")

# %%
# Measure
# -------
#
# The phase of a ciphertext is Q/t m + noise. Times t, it is Q m + t noise, and modulo Q the message is gone.


def deviation(ciphertext):
    """Of the noise's coefficients."""
    phase = ciphertext[0] + ciphertext[1] * keys.secret
    return float(np.std((phase * t).to_float64())) / t


def encrypt(number):
    values = np.random.default_rng(number).integers(0, t, n)
    return scheme.encrypt(keys.public, values, derive(b"another seed", str(number)))


products = 5
ciphertext = encrypt(0)
measured = [deviation(ciphertext)]
for number in range(1, products + 1):
    ciphertext = scheme.relinearise(keys.relin, scheme.multiply(ciphertext, encrypt(number)))
    measured.append(deviation(ciphertext))

# %%
# Predict
# -------
#
# In a product the noise v of one factor meets t r of the other, where c_0 + c_1 s = Q/t m + v + Q r as
# integers. r is about c_1 s / Q, uniform times secret. If all coefficients were independent, a product of
# polynomials with variances x and y would have the variance n x y.
#
# But r and v have the *same* secret s in them, and after k products s^k. Powers of a polynomial are larger
# than products of independent ones (:doc:`plot_gaussian_products`). At an evaluation point the value of s is
# a complex normal number whose squared size x has an exponential distribution, with mean 2n/3. So predict for
# each x, and take the mean at the end: by Gauss and Laguerre's rule, which is made for such means.

fresh = n * 10.5 * (4 * n / 3 + 1)  # variance at an evaluation point; a coefficient's times n
x, weights = np.polynomial.laguerre.laggauss(40)
x *= 2 * n / 3
fresh_at = n * 10.5 * (2 * n / 3 + 1 + x)

independent, dependent = [fresh], [fresh_at]
for _ in range(products):
    independent.append(n * t**2 / 12 * (2 + 2 * n / 3) * (independent[-1] + fresh))
    dependent.append(n * t**2 / 12 * (2 + x) * (dependent[-1] + fresh_at))
independent = [math.sqrt(v / n) for v in independent]
dependent = [math.sqrt(np.sum(weights * v) / n) for v in dependent]

for k, deviations in enumerate(zip(measured, independent, dependent, strict=True)):
    found, wrong, right = (math.log2(x) for x in deviations)
    print(f"{k} products: 2^{found:.2f}; independent 2^{wrong:.2f}; with powers of s 2^{right:.2f}")

assert all(abs(math.log2(a / b)) < 0.8 for a, b in zip(measured, dependent, strict=True))
assert math.log2(measured[-1] / independent[-1]) > 2.5

# %%
# Draw
# ----

import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
axes[0].plot(np.log2(measured), "o", label="measured")
axes[0].plot(np.log2(dependent), "-", label="predicted")
axes[0].axhline(math.log2(q / (2 * t)), color="grey", linestyle=":", label="Q/(2t): decryption fails")
axes[0].set(xlabel="products", ylabel="log2 of the noise's deviation")
axes[1].plot(np.log2(np.divide(measured, independent)), "o-", label="independent")
axes[1].plot(np.log2(np.divide(measured, dependent)), "s-", label="with powers of s")
axes[1].set(xlabel="products", ylabel="bits by which the prediction is too low")
for axis in axes:
    axis.legend()
plt.show()

# %%
# Four bits after five products: a parameter set chosen by the simple rule would fail. Papers of 2023 made
# this correction known (Biasioli and others, 2023/600).
