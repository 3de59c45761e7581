"""Plans: the constants and tables that an operation needs, as plain data. No code here uses a GPU."""
