"""Worked examples: ML-KEM, ML-DSA key generation, BFV, private information retrieval, CKKS and TFHE."""
