"""Exact integers: primes, roots of unity, and conversions of Python ints to and from residues and words."""
