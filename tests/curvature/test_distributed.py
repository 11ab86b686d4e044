"""Two processes with a share of the data each find what one finds with all of them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from linlap.distributed import sum_over_processes
from tests.cases import STRUCTURES
from tests.checks import close
from tests.truth import truth_of

SPLIT = 5


def fit_a_share(rank: int, folder: str) -> None:
    """What each process does: unequal shares, of a convolutional network too."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for case in STRUCTURES:
        truth = truth_of("mlp_many_data", "categorical")
        share = slice(SPLIT) if rank == 0 else slice(SPLIT, None)
        posterior = truth.fit(case.structure, 0.7, (truth.x[share], truth.y[share]), batch_size=4)
        totals = posterior.curvature.totals
        found[case.name] = (posterior.precision.dense(), totals.count, totals.log_likelihood)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=fit_a_share, args=(rank, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
def test_two_processes(case: Any, found: list[dict[str, Any]]) -> None:
    truth = truth_of("mlp_many_data", "categorical")
    alone = truth.fit(case.structure, 0.7)
    for one in found:
        precision, count, log_likelihood = one[case.name]
        close(precision, alone.precision.dense(), 1e-9)
        assert (type(count), count) == (int, len(truth.x))
        assert log_likelihood == pytest.approx(alone.curvature.totals.log_likelihood, rel=1e-12)


def test_alone_nothing_is_copied() -> None:
    value = {"sum": torch.ones(3), "count": 2}
    assert sum_over_processes(value) is value
