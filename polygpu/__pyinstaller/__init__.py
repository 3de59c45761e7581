"""The hook by which PyInstaller puts the package's data files into a program; pyproject.toml names it."""

import os


def hook_dirs() -> list[str]:
    """Return the folder with the hook."""
    return [os.path.dirname(__file__)]
