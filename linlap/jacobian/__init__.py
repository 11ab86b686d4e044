"""The blocks of a Jacobian and their contractions: pure functions of tensors."""

from linlap.jacobian.block import Block, ParameterBlock, gram_of_columns
from linlap.jacobian.covariance import covariance, whitened
from linlap.jacobian.dense import DenseBlock
from linlap.jacobian.families import Family, family
from linlap.jacobian.jacobian import Jacobian
from linlap.jacobian.kernel import kernel, numbers, own_kernel, settled, weighted_kernel
from linlap.jacobian.lookup import LookupBlock
from linlap.jacobian.many import grams
from linlap.jacobian.outer import LazyRows, OuterBlock

__all__ = [
    "Block",
    "DenseBlock",
    "Family",
    "Jacobian",
    "LazyRows",
    "LookupBlock",
    "OuterBlock",
    "ParameterBlock",
    "covariance",
    "family",
    "gram_of_columns",
    "grams",
    "kernel",
    "numbers",
    "own_kernel",
    "settled",
    "weighted_kernel",
    "whitened",
]
