"""Worked examples on the public API: ML-KEM, ML-DSA key generation, BFV, and private retrieval."""
