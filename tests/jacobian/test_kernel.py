"""Kernels of every network of the cases against products of the oracle's Jacobians."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.jacobian import Jacobian, kernel, numbers, own_kernel, settled, weighted_kernel
from linlap.network.inputs import take
from tests.cases import NETWORKS, NetworkCase
from tests.checks import close, varied
from tests.truth import truth_of

pytestmark = pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
networks = pytest.mark.parametrize("case", NETWORKS, ids=[case.name for case in NETWORKS])
couplings = pytest.mark.parametrize("coupled", [True, False], ids=["coupled", "independent"])


def product(J: Tensor, H: Tensor, coupled: bool) -> Tensor:
    if coupled:
        return (J.flatten(0, 1) @ H.flatten(0, 1).T)[None]
    return torch.einsum("ncp,mcp->cnm", J, H)


@networks
@couplings
def test_between_other_inputs(case: NetworkCase, coupled: bool) -> None:
    truth = truth_of(case.name)
    network = ll.Network(truth.model())
    network.prepare(truth.x)

    def features(stop: int) -> Jacobian:
        return settled(network.linearize(take(truth.x, 0, stop), once=True).jacobian, coupled)

    one, other = features(len(truth.J)), features(max(1, len(truth.J) - 1))
    J, H = truth.J, truth.J[: max(1, len(truth.J) - 1)]
    close(kernel(one, other, truth.names, coupled), product(J, H, coupled))
    close(kernel(other, one, truth.names, coupled), product(H, J, coupled))
    weights = varied(J.shape[-1])
    by_name = dict(zip(truth.names, weights.split([s.numel() for s in one.shapes.values()]), strict=True))
    parts = [weighted_kernel(one, other, name, by_name[name], coupled) for name in truth.names]
    close(torch.stack(parts).sum(0), product(J * weights, H, coupled))
    some = truth.names[::2]
    chosen = torch.cat([torch.full((one.shapes[name].numel(),), float(name in some)) for name in truth.names])
    close(kernel(one, other, some, coupled), product(J * chosen, H, coupled))
    assert (
        0
        < numbers(one)
        <= J.numel()
        + sum(t.numel() for block in one.blocks.values() for t in vars(block).values() if isinstance(t, Tensor))
    )


@networks
@couplings
def test_with_themselves(case: NetworkCase, coupled: bool) -> None:
    truth = truth_of(case.name)
    one = settled(ll.Network(truth.model()).linearize(truth.x).jacobian, coupled)
    half = {name: torch.tensor(0.5, dtype=torch.float64) for name in truth.names}
    expected = 0.5 * torch.einsum("ncp,ndp->ncd", truth.J, truth.J)
    close(own_kernel(one, half, diagonal=False), expected)
    close(own_kernel(one, half, diagonal=True), expected.diagonal(dim1=1, dim2=2))
    weights = varied(truth.J.shape[-1])
    by_name = dict(zip(truth.names, weights.split([s.numel() for s in one.shapes.values()]), strict=True))
    close(own_kernel(one, by_name, diagonal=False), torch.einsum("ncp,p,ndp->ncd", truth.J, weights, truth.J))


@couplings
def test_tiles_keep_what_biases_share(coupled: bool) -> None:
    """A bias at one position has its weight's gradients, and takes no memory of its own."""
    truth = truth_of("mlp_2_hidden")
    one = settled(ll.Network(truth.model()).linearize(truth.x).jacobian, coupled)
    assert one.biases == {f"{layer}.weight": f"{layer}.bias" for layer in ("0", "2", "4")}
    assert numbers(one) == len(truth.x) * (3 + 6 + 5 + 2 * (6 + 5 + 2))
    first = next(one.split(2))
    close(kernel(first, one, truth.names, coupled), product(truth.J[:2], truth.J, coupled))
    seed = one.seed(1)
    close(kernel(seed, seed, truth.names, True), product(truth.J[:, 1:2], truth.J[:, 1:2], True))
