"""Operations. Each checks its operands, chooses a plan, allocates the result and makes one backend call."""
