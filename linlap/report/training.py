"""Trains a small network to its MAP weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from linlap.likelihoods import Likelihood


def tanh_network(sizes: Sequence[int], seed: int) -> nn.Sequential:
    """A dense network with tanh between its layers; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(sizes):
            layers += [nn.Linear(wide, narrow, dtype=torch.float32), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def train_map(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    precision: float,
    *,
    steps: int,
    step_size: float = 1e-2,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Maximises Σ log p(y | f(x; θ)) − δ/2 ‖θ‖² by full-batch Adam: the same prior as the posterior's.

    The step size falls tenfold after 80 % and again after 93 % of the steps. `tick` is called once a step.
    """
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, step_size)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 80 // 100, steps * 93 // 100])
    targets = likelihood.prepare(y, model(x).detach())
    for _ in range(steps):
        optimizer.zero_grad()
        penalty = torch.stack([p.square().sum() for p in parameters]).sum()
        loss = 0.5 * precision * penalty - likelihood.log_prob(targets, model(x)).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
        tick()


@contextmanager
def one_thread() -> Iterator[None]:
    """For tensors this small more threads mostly wait for each other, longest where other programs run as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
