"""Python integers only: primes, roots of unity, residues and their composition, inverses."""
