"""Operations: they check, choose, allocate and make one call of a backend."""
