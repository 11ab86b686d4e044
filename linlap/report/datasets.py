"""Two small problems of classification: a generated 2-d set, and scikit-learn's digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from linlap.likelihoods import Bernoulli, Categorical, Likelihood


@dataclass(frozen=True)
class Shift:
    """Inputs unlike the training data, and what they are."""

    x: Tensor
    what: str


@dataclass(frozen=True)
class Problem:
    """Inputs `[n, d]` and labels `[n]` to train and to test on, and their likelihood over `outputs` outputs."""

    name: str
    what: str
    likelihood: Likelihood
    outputs: int
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    shift: Shift | None = None


def banana(seed: int = 0, train: int = 265, test: int = 2000) -> Problem:
    """Two noisy crescents, each reaching into the hollow of the other."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(train + test) % 2
    angle = math.pi * torch.rand(len(y), generator=generator)
    sign = (1.0 - 2.0 * y).float()
    x = torch.stack([1.6 * sign * (angle.cos() - 0.5), 2.6 * sign * (angle.sin() - 0.25)], -1)
    x = x + 0.45 * torch.randn(x.shape, generator=generator)
    what = f"two noisy crescents in the plane; {train} points to train on, {test} to test"
    return Problem("banana", what, Bernoulli(), 1, x[:train], y[:train].float(), x[train:], y[train:].float())


def digits(seed: int = 0, train: int = 1200) -> Problem:
    """scikit-learn's digits, averaged to 4×4 pixels: 16 inputs keep even a full covariance over weights small.

    The shifted set holds the test images with their pixels in random order, another for each image: the grey
    values of digits, in shapes that are none.
    """
    data = load_digits()
    images = torch.as_tensor(data.images, dtype=torch.float32) / data.images.max()
    x = torch.nn.functional.avg_pool2d(images.unsqueeze(1), 2).flatten(1)
    y = torch.as_tensor(data.target)
    split = train_test_split(x.numpy(), y.numpy(), train_size=train, random_state=seed, stratify=y.numpy())
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in split)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(x_test.shape, generator=generator).argsort(-1)
    shift = Shift(x_test.gather(1, order), "the same test images with their pixels shuffled, anew for each image")
    what = f"scikit-learn's digits at 4×4 pixels; {len(x_train)} to train on, {len(x_test)} to test"
    return Problem("digits", what, Categorical(), 10, x_train, y_train, x_test, y_test, shift)
