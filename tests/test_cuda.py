"""The same numbers on a GPU as on a CPU, for every network, structure and likelihood of the cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linlap as ll
from linlap.jacobian.gram import weighted_gram
from linlap.network.inputs import map_tensors
from linlap.posteriors import WeightPosterior
from tests.cases import LIKELIHOODS, NETWORKS, STRUCTURES
from tests.checks import close, noise, rest_of, same
from tests.structures import StructureCase
from tests.truth import Truth, truth_of

gpu_gram = pytest.importorskip("linlap.jacobian.gpu_gram", reason="needs Triton") if torch.cuda.is_available() else None

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def moved(x: Any) -> Any:
    return map_tensors(x, lambda t: t.cuda())


def on_gpu(truth: Truth, structure: Any, prior: Any = 0.7) -> WeightPosterior:
    data = moved(truth.x), truth.y.cuda()
    return ll.laplace(truth.model().cuda(), data, truth.likelihood, structure, prior, progress=False)


def agree(found: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    assert found.is_cuda
    close(found.cpu(), expected, tolerance)


@pytest.mark.parametrize("name", [case.name for case in NETWORKS])
@pytest.mark.parametrize("structure", [ll.Full(), ll.Diagonal(), ll.Kron()], ids=["full", "diagonal", "kron"])
def test_networks(name: str, structure: Any) -> None:
    truth = truth_of(name)
    cpu, gpu = truth.fit(structure, 0.7).latent(truth.x), on_gpu(truth, structure).latent(moved(truth.x))
    # torch's fused kernel for weight_norm keeps fewer digits than float64 has.
    tolerance = 1e-6 if name.startswith("weight_norm") else 1e-8
    agree(gpu.mean, cpu.mean, tolerance)
    agree(gpu.cov, cpu.cov, tolerance)


@pytest.mark.parametrize("case", STRUCTURES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["mlp_many_data", "conv2d", "conv2d_groups", "positions"])
def test_structures(case: StructureCase, name: str) -> None:
    truth = truth_of(name)
    cpu, gpu = truth.fit(case.structure, 0.7), on_gpu(truth, case.structure)
    x, there = truth.x, moved(truth.x)
    agree(gpu.latent(there, joint=True).cov, cpu.latent(x, joint=True).cov)
    agree(gpu.latent(there, diagonal=True).cov, cpu.latent(x, diagonal=True).cov)
    agree(gpu.log_evidence(), cpu.log_evidence())
    agree(gpu.with_prior(2.0).latent(there).cov, cpu.with_prior(2.0).latent(x).cov)
    assert gpu.sample_functions(there, 3).shape == (3, *cpu.latent(x).mean.shape)


@pytest.mark.parametrize("law", LIKELIHOODS, ids=lambda law: law.name)
def test_predictives(law: Any) -> None:
    truth = truth_of("mlp_2_hidden", law.name)
    gpu, x = on_gpu(truth, ll.Full()), moved(truth.x)
    for predictive in (ll.GLM(gpu), ll.BNN(gpu, samples=5), ll.MAP(gpu)):
        assert predictive(x).mean.is_cuda
        parts = ll.uncertainty(predictive, x)
        agree(parts.total, (parts.aleatoric + parts.epistemic).cpu())
    expected = ll.MAP(truth.fit(ll.Full(), 0.7))(truth.x).mean
    found = ll.MAP(gpu)(x).mean
    assert bool((found.cpu() - expected).abs().nan_to_num().max() < 1e-8)


def test_generators_decide_the_result() -> None:
    truth = truth_of("mlp_2_hidden", "categorical")
    gpu, x = on_gpu(truth, ll.Kron()), moved(truth.x)

    def drawn(seed: int) -> Tensor:
        return ll.GLM(gpu, ll.MonteCarlo(20, torch.Generator("cuda").manual_seed(seed)))(x).probs

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_from_one_device_to_the_other(tmp_path: Path) -> None:
    truth = truth_of("conv2d", "categorical")
    gpu = on_gpu(truth, ll.Kron())
    ll.save(gpu, tmp_path / "posterior.safetensors")
    back = ll.load(tmp_path / "posterior.safetensors", truth.model())
    close(back.latent(truth.x).cov, gpu.latent(moved(truth.x)).cov.cpu())


def test_loaders_of_cpu_tensors_are_moved_and_inputs_elsewhere_refused() -> None:
    truth = truth_of("mlp_2_hidden", "categorical")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(truth.x, truth.y), batch_size=2)
    posterior = ll.laplace(truth.model().cuda(), loader, truth.likelihood, ll.Kron(), 0.7, progress=False)
    agree(posterior.latent(moved(truth.x)).cov, truth.fit(ll.Kron(), 0.7).latent(truth.x).cov)
    with pytest.raises(ll.InputError, match="inputs are on cpu but the model is on cuda"):
        posterior.latent(truth.x)


def test_the_model_is_untouched() -> None:
    truth = truth_of("batch_norm2d")
    model = truth.model().cuda()
    before, state = rest_of(model), torch.cuda.get_rng_state()
    posterior = ll.laplace(model, (moved(truth.x), truth.y.cuda()), truth.likelihood, progress=False)
    ll.BNN(posterior, samples=2)(moved(truth.x))
    posterior.latent(moved(truth.x))
    assert same(before, rest_of(model))
    assert torch.equal(state, torch.cuda.get_rng_state())


@pytest.mark.parametrize("name", ["mlp_wide", "conv2d", "resnet", "transformer_encoder_layer"])
def test_float32_without_tf32(name: str) -> None:
    truth = truth_of(name)
    posterior = ll.laplace(
        truth.model().float().cuda(),
        (map_tensors(moved(truth.x), _single), _single(truth.y.cuda())),
        truth.likelihood,
        ll.Kron(),
        0.7,
        progress=False,
    )
    found = posterior.latent(map_tensors(moved(truth.x), _single)).cov
    agree(found, truth.fit(ll.Kron(), 0.7).latent(truth.x).cov, 1e-3)


def _single(t: Tensor) -> Tensor:
    return t.float() if t.is_floating_point() else t


@pytest.mark.parametrize(
    "shape",
    [(5, 1, 10, 64, 75), (3, 1, 3, 40, 27), (4, 2, 10, 33, 64), (1, 1, 17, 128, 64), (2, 3, 64, 50, 50)],
    ids=str,
)
@pytest.mark.parametrize("allowed", [False, True], ids=["float32", "tf32"])
def test_gram_kernel(shape: tuple[int, ...], allowed: bool) -> None:
    """On numbers of one sign as well, where errors of rounding do not cancel."""
    j, weights = noise(*shape).float().cuda(), noise(shape[1], *shape[3:]).square().float().cuda()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        for one in (j, j.abs()):
            assert gpu_gram.serves(one, weights)
            expected = torch.einsum("nkroi,koi,nksoi->nrs", one.double(), weights.double(), one.double())
            for diagonal in (False, True):
                found = weighted_gram(one.clone(), weights, diagonal)
                agree(
                    found,
                    (expected.diagonal(dim1=1, dim2=2) if diagonal else expected).cpu(),
                    2e-3 if allowed else 1e-5,
                )
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("newer", [False, True], ids=["older switches", "newer switches"])
def test_layers_are_recognised_under_tf32(newer: bool) -> None:
    """Rounding is not taken for a layer that does not explain its gradient; the switches are put back."""
    switches = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]
    before = [switch.fp32_precision for switch in switches]
    older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        if newer:
            for switch in switches:
                switch.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("medium")
            torch.backends.cudnn.allow_tf32 = True
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 96, 3), nn.ReLU(), nn.Conv2d(96, 10, 1), nn.AvgPool2d(6), nn.Flatten()
        ).cuda()
        network = ll.Network(model)
        network.linearize(torch.randn(4, 3, 8, 8, device="cuda"))
        assert not network.opaque
        if newer:
            assert [switch.fp32_precision for switch in switches] == ["tf32", "tf32"]
        else:
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("medium", True)
    finally:
        if newer:
            for switch, value in zip(switches, before, strict=True):
                switch.fp32_precision = value
        else:
            torch.set_float32_matmul_precision(older[0])
            torch.backends.cudnn.allow_tf32 = older[1]
