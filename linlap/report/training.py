"""Small networks, and what is needed to train them well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import nn


def tanh_network(sizes: Sequence[int], seed: int) -> nn.Sequential:
    """A dense network with tanh between its layers; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(sizes):
            layers += [nn.Linear(wide, narrow, dtype=torch.float32), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def falling(rate: float, steps: int) -> Callable[[int], float]:
    """A rate that falls tenfold after 80 % and again after 93 % of the steps."""
    return lambda step: rate * 0.1 ** ((step >= steps * 80 // 100) + (step >= steps * 93 // 100))


@contextmanager
def one_thread() -> Iterator[None]:
    """For tensors this small more threads mostly wait for each other, longest where other programs run as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
