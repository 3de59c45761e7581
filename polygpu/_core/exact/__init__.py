"""Exact integers: primes, roots of unity, and Python ints from and to residues and words."""
