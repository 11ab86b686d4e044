"""Symmetric positive definite operators and the factorisations behind them."""

from linlap.linalg.base import SPD
from linlap.linalg.block import BlockDiagonal
from linlap.linalg.dense import Dense, Spectral
from linlap.linalg.diagonal import Diagonal
from linlap.linalg.factor import draw, psd_sqrt, rounded, safe_cholesky, safe_eigh, symmetric
from linlap.linalg.kronecker import Kronecker
from linlap.linalg.lanczos import lanczos
from linlap.linalg.layer import KroneckerLayer
from linlap.linalg.low_rank import LowRank
from linlap.linalg.product import each_product, is_faster, product
from linlap.linalg.tf32 import tf32_allowed, without_tf32

__all__ = [
    "SPD",
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "Kronecker",
    "KroneckerLayer",
    "LowRank",
    "Spectral",
    "draw",
    "each_product",
    "is_faster",
    "lanczos",
    "product",
    "psd_sqrt",
    "rounded",
    "safe_cholesky",
    "safe_eigh",
    "symmetric",
    "tf32_allowed",
    "without_tf32",
]
