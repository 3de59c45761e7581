"""
Time of a product against n
===========================

How long does ``a * b`` take in Z_q[X]/(X^n + 1), on your machine? This program measures it for primes of 30,
50 and 60 bits, for q = 2^64, which has no transform, and for the textbook's method in NumPy.

How to measure: :doc:`/tutorials/measuring`.
"""

import time

import numpy as np

import polygpu as pg

# %%
# A median of samples, each a loop that lasts half a millisecond.


def median_seconds(work, samples=9, least=5e-4):
    work()
    start = time.perf_counter()
    work()
    loops = max(1, int(least / (time.perf_counter() - start)))
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(loops):
            work()
        times.append((time.perf_counter() - start) / loops)
    return float(np.median(times))


degrees = [2**k for k in range(8, 15)]
moduli = {
    "30-bit prime": lambda n: pg.ntt_primes(n, bits=30),
    "50-bit prime": lambda n: pg.ntt_primes(n, bits=50),
    "60-bit prime": lambda n: pg.ntt_primes(n, bits=60),
    "2^64": lambda n: 2**64,
}
seconds = {name: [] for name in moduli}
for n in degrees:
    for name, modulus in moduli.items():
        ring = pg.Ring(n, modulus(n))
        a, b = ring.random(seed=1), ring.random(seed=2)
        seconds[name].append(median_seconds(lambda a=a, b=b: a * b))


# %%
# The textbook's method: n^2 products, here of machine words modulo 2^64, which need no reduction.


def textbook(a, b):
    product = np.append(np.convolve(a, b), np.uint64(0))
    return product[: len(a)] - product[len(a) :]


seconds["textbook, 2^64"] = []
for n in degrees[:5]:
    ring = pg.Ring(n, 2**64)
    a, b = ring.random(seed=1), ring.random(seed=2)
    assert np.array_equal(textbook(a.data[0], b.data[0]), (a * b).data[0])
    work = lambda x=a.data[0], y=b.data[0]: textbook(x, y)  # noqa: E731
    seconds["textbook, 2^64"].append(median_seconds(work, samples=3))

for name, times in seconds.items():
    print(f"{name:15}", "  ".join(f"{1e6 * t:8.1f}" for t in times), "us")
assert seconds["textbook, 2^64"][4] > seconds["2^64"][4]

# %%
# Draw
# ----

import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
for name, times in seconds.items():
    axis.loglog(degrees[: len(times)], np.multiply(times, 1e6), "o-", label=name)
steps = np.multiply(degrees, np.log2(degrees))
axis.loglog(degrees, 1e6 * seconds["50-bit prime"][-1] / steps[-1] * steps, "k:", label="n log n")
axis.set_xscale("log", base=2)
axis.set(xlabel="n", ylabel="us a product")
axis.legend()
plt.show()

# %%
# Small products take the time of a call from Python, a few microseconds. From n = 2^10 on lines follow n log
# n. The textbook's line is twice as steep.
