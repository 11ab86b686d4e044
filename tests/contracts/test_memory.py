"""No tensor larger than the work needs: the size of every one that an operation makes is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import linlap as ll
from linlap.linalg import draw
from linlap.network import memory
from linlap.types import Gaussian
from tests.checks import close
from tests.networks.parts import Wired


class Largest(TorchDispatchMode):
    """The most bytes that one operation gave memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)}
        done = func(*args, **(kwargs or {}))
        for t in tree_leaves(done):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return done


def largest(work: Callable[[], Any]) -> int:
    with Largest() as seen:
        work()
    return seen.bytes


def test_samples_do_not_repeat_the_root() -> None:
    law = Gaussian(torch.zeros(3, 20), torch.eye(20).expand(3, 20, 20).contiguous())
    assert largest(lambda: draw(law, 200, torch.Generator().manual_seed(0))) <= 200 * 3 * 20 * 4


def test_the_check_of_the_first_batch_forms_no_jacobian() -> None:
    net = ll.Network(nn.Sequential(nn.Embedding(5000, 8), nn.Flatten(), nn.Linear(32, 3)))
    words = torch.arange(24).reshape(6, 4)
    assert largest(lambda: net.prepare(words)) <= 2 * 4 * net.size


def test_squares_of_convolutions_make_patches_of_a_few_inputs() -> None:
    torch.manual_seed(0)
    net = ll.Network(nn.Sequential(nn.Conv2d(8, 2, 7, padding=3), nn.Flatten(), nn.Linear(512, 2)), "0.weight")
    x = torch.randn(64, 8, 16, 16)
    net.prepare(x)
    patches = 4 * len(x) * 256 * 8 * 49
    assert largest(lambda: net.linearize(x).jacobian.square_sum()) <= patches / 4


@pytest.mark.parametrize("structure", [ll.Kron(), ll.Diagonal()], ids=str)
def test_patches_are_part_of_the_budget(structure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large kernels on one channel: a patch an output is many times the output."""
    budget = 4 << 20
    monkeypatch.setattr(memory, "available", lambda device: 4 * budget)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 1, 9, padding=4), nn.Flatten(), nn.Linear(256, 1))
    data = (torch.randn(128, 4, 16, 16), torch.randn(128))
    fit = largest(lambda: ll.laplace(model, data, ll.Gaussian(), structure, progress=False))
    assert fit <= budget


def test_many_functions_are_part_of_the_budget() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 64, 1))
    data = (torch.randn(32, 1, 8, 8), torch.randn(32))
    posterior = ll.laplace(model, data, ll.Gaussian(), progress=False)
    budget = 8 << 20
    assert largest(lambda: posterior.sample_functions(data[0], 200, memory=budget)) <= budget
    close(posterior.sample_functions(data[0], 200, memory=budget), posterior.sample_functions(data[0], 200), 1e-5)


def test_more_numbers_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said first, with the number: covariances of many outputs, functions of many weights."""
    model = nn.Linear(2, 300)
    posterior = ll.laplace(model, (torch.randn(4, 2), torch.arange(4)), ll.Categorical(), ll.Diagonal(), progress=False)
    x = torch.randn(1000, 2)
    posterior.latent(x[:1])
    monkeypatch.setattr(memory, "available", lambda device: 64 << 20)
    with pytest.raises(ll.MemoryBudgetError, match=r"covariances of 1000 inputs.*diagonal=True"):
        posterior.latent(x)
    assert posterior.latent(x, diagonal=True).cov.shape == (1000, 300)
    with pytest.raises(ll.MemoryBudgetError, match=r"100000 functions of 900 weights"):
        posterior.sample_functions(x[:1], 100_000)


def test_bare_parameters_and_norms_are_no_kronecker_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places added to tokens, [1, 600, 64]: above the limit their diagonal is kept, and so little is needed."""
    monkeypatch.setattr(memory, "available", lambda device: 1 << 28)

    def use(m: Any, x: Tensor) -> Tensor:
        return m.head(m.norm(x.unsqueeze(1) + m.places).mean(1))

    parts = {"places": nn.Parameter(torch.randn(1, 600, 64)), "norm": nn.LayerNorm((600, 64)), "head": nn.Linear(64, 2)}
    x = torch.randn(4, 64)
    posterior = ll.laplace(Wired(use, **parts), (x, torch.arange(4) % 2), ll.Categorical(), progress=False)
    assert posterior.latent(x).cov.shape == (4, 2, 2)


@pytest.mark.parametrize("structure", [ll.Kron(), ll.Diagonal()], ids=str)
def test_variances_of_many_outputs_of_a_last_layer(structure: Any) -> None:
    """No number for each input and pair of outputs; the same as from the whole network's covariances."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 300)).double()
    data = (torch.randn(6, 4, dtype=torch.float64), torch.arange(6))
    posterior = ll.laplace(model, data, ll.Categorical(), structure, 1.0, parameters="last", progress=False)
    x = torch.randn(40, 4, dtype=torch.float64)
    expected = posterior.latent(x).cov.diagonal(dim1=1, dim2=2)
    assert largest(lambda: posterior.latent(x, diagonal=True)) <= 8 * 300 * 300
    close(posterior.latent(x, diagonal=True).cov, expected, 1e-12)
    close(posterior.latent(x, diagonal=True, memory=300_000).cov, expected, 1e-12)
