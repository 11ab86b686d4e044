"""Random seeds in place of the exact ones: right on average, and the exact ones where they are no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import linlap as ll
from linlap.data import as_batches
from linlap.jacobian import Jacobian
from linlap.sweep import DataSweep
from tests.checks import close
from tests.truth import truth_of

COPIES = 1500


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("name", ["mlp_3_hidden", "conv1d_replicate"])
def test_unbiased(name: str, seeds: int) -> None:
    """The same data many times over, each time with seeds of its own: the average is within its standard errors."""
    truth = truth_of(name, "categorical")
    network = ll.Network(truth.model())
    x, y = truth.x.repeat(COPIES, *[1] * (truth.x.ndim - 1)), truth.y.repeat(COPIES)
    batches = as_batches((x, y), len(truth.x), network.device)
    sweep = DataSweep(network, batches, truth.likelihood, seeds=seeds, progress=False)

    def measure(jacobian: Jacobian) -> dict[str, Tensor]:
        rows = jacobian.dense().flatten(0, 1)
        H = rows.mT @ rows
        return {"sum": H, "sum of squares": H.square()}

    sums = sweep.sum(measure, "")
    mean, squares = (total / COPIES for total in sums.values())
    error = ((squares - mean.square()).clamp_min(0) / COPIES).sqrt()
    assert error.max() < 0.05 * truth.H.abs().max()
    assert ((mean - truth.H).abs() <= 5 * error + 1e-10).all()
    assert error.max() > 0


@pytest.mark.parametrize("structure", [ll.Full(), ll.Diagonal(), ll.Kron(), ll.Kron(corrected=True)], ids=str)
def test_as_many_as_outputs_are_exact(structure: Any) -> None:
    truth = truth_of("mlp_3_hidden", "categorical")
    exact = truth.fit(structure).precision.dense()
    for seeds in (4, 9):
        assert torch.equal(truth.fit(structure, seeds=seeds).precision.dense(), exact)
    assert not torch.allclose(truth.fit(structure, seeds=2).precision.dense(), exact)


def test_they_do_not_depend_on_batches_or_on_torchs_generator() -> None:
    truth = truth_of("mlp_3_hidden", "categorical")
    before = torch.get_rng_state()
    one, other = (truth.fit(ll.Full(), seeds=2, batch_size=size).precision.dense() for size in (2, 100))
    close(one, other, 1e-12)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1234)
    assert torch.equal(truth.fit(ll.Full(), seeds=2).precision.dense(), other)
    torch.set_rng_state(before)


@pytest.mark.parametrize("seeds", [0, -1, True, 1.5, "2"])
def test_numbers_that_cannot_be(seeds: Any) -> None:
    with pytest.raises(ll.InputError, match="seeds=.*positive"):
        truth_of("mlp_3_hidden").fit(ll.Full(), seeds=seeds)
