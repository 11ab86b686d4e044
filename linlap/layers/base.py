"""The normal form of a layer call: how the gradient at its output becomes the Jacobian blocks of its parameters.

A rule looks at a module and the input of one call, and returns for each of the module's own parameters a
function from the seeded gradients at the output to that parameter's block. A module with no rule, or a
parameter a rule leaves out, goes through the dense fallback of the network: exact, only slower.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import torch
from torch import Tensor, nn

from linlap.jacobian import DenseBlock, ParameterBlock

Rule = Callable[[Tensor], ParameterBlock]
Taps = dict[str, Rule]


@singledispatch
def taps(module: nn.Module, x: Tensor, n: int) -> Taps:
    """Rules for one call of `module` on `x`, whose first axis holds n inputs, or n times some positions.

    A rule takes g, the seeded gradients at the call's output, `[n, r, ...]`: the output's axes with the
    seeds put second. It does its work when it is called, not before, so that memory is taken one block at
    a time.
    """
    return {}


def positions(x: Tensor, n: int, features: int) -> Tensor:
    """Rows of `features` numbers as `[n, s, features]`: every axis between the inputs and the features is shared."""
    return x.reshape(n, -1, features)


def seeded_positions(g: Tensor, features: int) -> Tensor:
    """`[n, r, ..., features]` as `[n, r, s, features]`."""
    n, r = g.shape[:2]
    return g.reshape(n, r, -1, features)


def summed(shape: torch.Size) -> Rule:
    """Rule of an additive bias on the last axis: J is the gradient summed over positions."""

    def rule(g: Tensor) -> DenseBlock:
        rows = seeded_positions(g, shape.numel())
        return DenseBlock(rows[:, :, 0] if rows.shape[2] == 1 else rows.sum(2), shape)

    return rule
