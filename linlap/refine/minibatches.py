"""Data in minibatches, in an order that only the seed and the number of the step decide where it can be decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from linlap.data import Batches, TensorBatches, as_batches
from linlap.errors import InputError
from linlap.network.inputs import count, map_tensors
from linlap.seeds import generator_for
from linlap.types import Inputs

Batch = tuple[Inputs, Tensor]


@dataclass(frozen=True)
class Minibatches:
    """Tensors and Datasets are shuffled anew for each pass; loaders and lists of batches come as they are."""

    data: Any
    size: int
    device: torch.device
    seed: int

    def since(self, step: int) -> Iterator[Batch]:
        """Batches without end, from the one of a step on."""
        batches = as_batches(self.data, self.size, self.device)
        if isinstance(batches.source, TensorBatches):
            return self._of_tensors(batches.source, batches, step)
        return self._of_passes(step)

    def _of_tensors(self, tensors: TensorBatches, batches: Batches, step: int) -> Iterator[Batch]:
        while True:
            epoch, index = divmod(step, len(tensors))
            order = torch.randperm(count(tensors.x), generator=self._generator(epoch), device="cpu")
            for start in range(index * self.size, count(tensors.x), self.size):
                yield from Batches([_rows(tensors, order[start : start + self.size])], self.device, 1)
                step += 1

    def _of_passes(self, step: int) -> Iterator[Batch]:
        epoch = seen = 0
        while True:
            before = seen
            data = self.data
            if isinstance(data, Dataset) and not isinstance(data, DataLoader):
                data = DataLoader(data, batch_size=self.size, shuffle=True, generator=self._generator(epoch))
            for batch in as_batches(data, self.size, self.device):
                seen += 1
                if seen > step:
                    yield batch
            if seen == before:
                raise InputError("the data are empty: no batch came. Pass at least one input.")
            epoch += 1

    def _generator(self, epoch: int) -> torch.Generator:
        return generator_for(self.seed, epoch)


def _rows(tensors: TensorBatches, rows: Tensor) -> Batch:
    def chosen(t: Tensor) -> Tensor:
        return t[rows.to(t.device)]

    return map_tensors(tensors.x, chosen), chosen(tensors.y)
