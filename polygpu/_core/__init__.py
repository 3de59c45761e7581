"""The lowest layer of the package: integers, rings as plain data, plans, checks of arguments."""
