"""The command `polygpu bench`: its cases, timing, and plots."""
