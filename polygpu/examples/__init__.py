"""Worked examples on the public API: ML-KEM, ML-DSA key generation, and a BFV scheme."""
