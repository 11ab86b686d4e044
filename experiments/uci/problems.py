"""Ten splits of a set side by side, and the first weights of the networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from experiments.uci.config import NETWORKS
from experiments.uci.sets import Set, Table
from linlap.errors import InputError
from linlap.likelihoods import Bernoulli, Categorical, ClassLikelihood
from linlap.report.training import tanh_network

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Splits:
    """The parts of every split, x `[splits, n, d]` and y `[splits, n]`."""

    of: Set
    train: Pair
    valid: Pair
    test: Pair

    @property
    def likelihood(self) -> ClassLikelihood:
        return Bernoulli() if self.of.classes == 2 else Categorical()

    @property
    def count(self) -> int:
        """Data to train on."""
        return self.train[0].shape[1]


def splits_of(of: Set, table: Table, seeds: tuple[int, ...], device: torch.device) -> Splits:
    """The protocol's splits, features standardised by what is trained on."""
    parts = [split(table, seed) for seed in seeds]
    stacked = [_pair([part[i] for part in parts], of, device) for i in range(3)]
    return Splits(of, *stacked)


def split(table: Table, seed: int) -> tuple[Table, Table, Table]:
    """70 % to train on, 15 % to choose and 15 % to test with, classes in their shares; features standardised."""
    x, y = table[:, :-1], table[:, -1]
    x_train, x_rest, y_train, y_rest = train_test_split(x, y, train_size=0.7, random_state=seed, stratify=y)
    x_test, x_valid, y_test, y_valid = train_test_split(
        x_rest, y_rest, train_size=0.5, random_state=seed, stratify=y_rest
    )
    scaler = StandardScaler().fit(x_train)
    pairs = ((x_train, y_train), (x_valid, y_valid), (x_test, y_test))
    train, valid, test = (np.column_stack([scaler.transform(x), y]) for x, y in pairs)
    return train, valid, test


def _pair(parts: list[NDArray[np.float64]], of: Set, device: torch.device) -> Pair:
    both = torch.as_tensor(np.stack(parts), device=device)
    y = both[..., -1]
    return both[..., :-1].float(), y.float() if of.classes == 2 else y.long()


def network(name: str, of: Set, seed: int) -> nn.Sequential:
    """With torch's own first weights under a seed."""
    if name not in NETWORKS:
        raise InputError(f"there is no network {name!r}; the networks are {', '.join(NETWORKS)}.")
    return tanh_network((of.features, *NETWORKS[name], of.outputs), seed)


def weights(name: str, of: Set) -> int:
    """P."""
    return sum(p.numel() for p in network(name, of, 0).parameters())
