"""Experiments: each folder asks one question, runs by `python -m experiments.<folder>`, and keeps its answer."""
