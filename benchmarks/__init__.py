"""Time and memory of linlap against its peers and plain PyTorch. Run `python -m benchmarks --help`."""
