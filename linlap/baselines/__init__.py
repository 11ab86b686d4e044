"""What practitioners would reach for instead, with the library's own posteriors and predictives; and training."""

from linlap.baselines.train import train_map

__all__ = ["train_map"]
