"""Data files that polygpu reads: JSON files, and the CUDA sources, which a program compiles where it runs."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("polygpu", includes=["cuda/*", "**/*.json"])
