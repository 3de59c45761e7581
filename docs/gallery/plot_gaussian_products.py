"""
Norms of products of Gaussian polynomials
=========================================

Noise in lattice cryptography consists of small random polynomials and of their products. How large is a
product of k of them? And how large is the k-th *power* of one? This program draws both beside the prediction.
"""

import math
from statistics import NormalDist

import numpy as np

import polygpu as pg

n, sigma, samples, most = 4096, 3.2, 50, 6
R = pg.Ring(n, pg.ntt_primes(n, bits=60, count=3))  # Q of 180 bits: no product is reduced

# %%
# Products and powers
# -------------------
#
# A coefficient of a product is a sum of n products of coefficients. Factors that are independent of each
# other, with variances v and w, give the variance n v w. So k factors give n^(k-1) sigma^(2k), and the 2-norm
# of all n coefficients is sqrt(n)^k sigma^k.
#
# The k-th power is larger. Its values at the evaluation points are k-th powers of complex normal numbers,
# whose squared size has an exponential distribution: the mean of its k-th power is k! times the k-th power of
# its mean. So the norm is sqrt(k!) times as large.

factors = R.gaussian(sigma, batch=(most, samples), seed=1)
product = power = R.ones()
norms = {"products": [], "powers": [], "largest": []}
for k in range(most):
    product, power = product * factors[k], power * factors[0]
    norms["products"].append(math.sqrt(np.mean(product.norm(2) ** 2)))
    norms["powers"].append(math.sqrt(np.mean(power.norm(2) ** 2)))
    norms["largest"].append(float(np.median(product.norm(math.inf))))

ks = np.arange(1, most + 1)
predicted = (math.sqrt(n) * sigma) ** ks
factorial = np.array([math.sqrt(math.factorial(k)) for k in ks])

for k, a, b, c in zip(ks, norms["products"] / predicted, norms["powers"] / predicted, factorial, strict=True):
    print(f"{k} factors: product {a:.3f}, power {b:.3f} of the prediction; sqrt(k!) = {c:.3f}")

assert np.all(abs(norms["products"] / predicted - 1) < 0.1)
assert np.all(abs(norms["powers"] / predicted / factorial - 1) < 0.25)

# %%
# The largest coefficient
# -----------------------
#
# A sum of many terms is nearly normal. The largest of n normal numbers is, in the median, the quantile that
# each of them stays below with the probability 2^(-1/n).

quantile = NormalDist().inv_cdf((1 + 0.5 ** (1 / n)) / 2)
largest = norms["largest"] / (predicted / math.sqrt(n))
print("largest coefficients, in deviations", largest.round(2), "predicted", round(quantile, 2))
assert np.all(abs(largest / quantile - 1) < 0.15)

# %%
# Draw
# ----

import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
axes[0].plot(ks, norms["products"] / predicted, "o", label="products")
axes[0].plot(ks, norms["powers"] / predicted, "s", label="powers")
axes[0].plot(ks, np.ones(most), "C0-", ks, factorial, "C1-")
axes[0].set(xlabel="k", ylabel="2-norm over (sqrt(n) sigma)^k", yscale="log", title="lines: 1 and sqrt(k!)")
axes[0].legend()
deviation = sigma**3 * n  # of three factors
coefficients = (factors[0] * factors[1] * factors[2]).to_float64().ravel() / deviation
axes[1].hist(coefficients, bins=200, density=True, histtype="step", label="a product of 3")
grid = np.linspace(-5, 5, 200)
axes[1].plot(grid, np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi), label="normal")
axes[1].axvline(quantile, color="grey", linestyle=":", label="largest of 4096")
axes[1].set(xlabel="coefficient, in deviations", ylabel="density", yscale="log", ylim=(1e-6, 1))
axes[1].legend()
plt.show()
