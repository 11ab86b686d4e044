"""Foreign modules brought to normal form, one file a kind. To add one: a file here, and an import below."""

from linlap.layers import convolution, embedding, linear, norm, prelu, transposed
from linlap.layers.base import Rule, Taps, taps

__all__ = ["Rule", "Taps", "convolution", "embedding", "linear", "norm", "prelu", "taps", "transposed"]
