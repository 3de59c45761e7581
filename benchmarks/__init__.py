"""Measurements: `harness` times what it has verified, `cpu` has cases, `report` the tables."""
