"""What the other floors stand on: integers, rings as plain data, plans, checks."""
