"""Worked examples: ML-KEM, ML-DSA key generation, BFV, private retrieval, CKKS and TFHE."""
