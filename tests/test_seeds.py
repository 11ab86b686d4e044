"""Random numbers depend on the seed and on the number both, and on nothing else."""

from __future__ import annotations

import torch

from linlap.seeds import generator_for


def test_every_pair_has_numbers_of_its_own() -> None:
    pairs = [(seed, index) for seed in (0, 1, 2, 1 << 32) for index in (0, 1, 2, 1 << 32)]
    drawn = [torch.rand(2, generator=generator_for(*pair)) for pair in pairs]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(pairs)
    assert torch.equal(torch.rand(2, generator=generator_for(2, 1)), drawn[pairs.index((2, 1))])
