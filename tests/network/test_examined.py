"""What the first batch must not hide: rows in another order, other branches later, and digits lost to short dtypes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn, tanh
from torch.utils.checkpoint import checkpoint

import linlap as ll
from tests.checks import close, noise
from tests.networks.forward import after_fc, sorted_inside
from tests.networks.parts import Wired
from tests.truth import truth_of

X, Y = noise(12, 3), torch.arange(12) % 2
STRUCTURES = [ll.Full(), ll.Diagonal(), ll.Kron(), ll.Kron(corrected=True), ll.LowRank(40)]


def wired(use: Any, **parts: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return Wired(use, **parts).double()


def fit(model: nn.Module, data: Any = None, structure: Any = None, **options: Any) -> Any:
    return ll.laplace(model, data or (X, Y), ll.Categorical(), structure, progress=False, **options)


@pytest.mark.filterwarnings("ignore::linlap.LinlapWarning")
@pytest.mark.parametrize("descending", [False, True])
def test_rows_sorted_inside_though_the_first_inputs_are_in_order(descending: bool) -> None:
    order = X[:, 0].argsort(descending=descending)
    order = torch.cat([order[:4], order[4:].flip(0)])
    x, y = X[order], Y[order]
    parts = {"fc": nn.Linear(3, 4), "head": nn.Linear(4, 2)}
    by_rows, plain = (fit(wired(use, **parts), (x, y), ll.Full()) for use in (sorted_inside, after_fc))
    close(by_rows.curvature.matrix, plain.curvature.matrix)
    close(by_rows.latent(x).cov, plain.latent(x).cov)


def routed(m: Any, x: Tensor) -> Tensor:
    """Each input goes through one of two layers, which is not called where no input takes it."""
    h = x.new_zeros(len(x), 4)
    for layer, taken in ((m.one, x[:, 0] > 0), (m.other, x[:, 0] <= 0)):
        if taken.any():
            h[taken] = layer(x[taken])
    return m.head(tanh(h))


def masked(m: Any, x: Tensor) -> Tensor:
    taken = (x[:, :1] > 0).to(x.dtype)
    return m.head(tanh(m.one(x) * taken + m.other(x) * (1 - taken)))


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
@pytest.mark.parametrize("first", ["one", "other", "both"])
def test_layers_that_are_not_called_for_every_batch(structure: Any, first: str) -> None:
    high, low = X[X[:, 0] > 0], X[X[:, 0] <= 0]
    batches = {"one": [high, low, X], "other": [low, X, high], "both": [X, low, high]}[first]
    data = [(x, torch.arange(len(x)) % 2) for x in batches]
    parts = {"one": nn.Linear(3, 4), "other": nn.Linear(3, 4), "head": nn.Linear(4, 2)}
    found, truth = (fit(wired(use, **parts), data, structure) for use in (routed, masked))
    for x in (high, low, X):
        cov = found.latent(x).cov
        if isinstance(structure, ll.Kron):
            assert torch.linalg.eigvalsh(cov).min() > 0
            close(cov, found.latent(x, joint=True).marginals().cov)
        else:
            close(cov, truth.latent(x).cov, 1e-6 if isinstance(structure, ll.LowRank) else 1e-8)
    alone = [(x[:1], y[:1]) for x, y in data]
    fit(wired(routed, **parts), alone, structure).latent(X)  # where taps do see every row, until they do not


def test_weights_of_mixed_or_short_dtypes() -> None:
    mixed = wired(lambda m, x: m.head(tanh(m.fc(x)).float()), fc=nn.Linear(3, 4), head=nn.Linear(4, 2))
    mixed.get_submodule("head").float()
    with pytest.raises(ll.InputError, match=r"'head.weight' are torch.float32.*'fc.weight' torch.float64.*double"):
        fit(mixed)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(ll.InputError, match=r"'weight' are torch.b?float16.*float32 or float64"):
            fit(nn.Linear(3, 2).to(dtype), (X.to(dtype), Y))


def test_outputs_of_another_dtype() -> None:
    model = wired(lambda m, x: after_fc(m, x).bfloat16(), fc=nn.Linear(3, 4), head=nn.Linear(4, 2))
    with pytest.raises(ll.InputError, match=r"outputs are torch.bfloat16 but the weights torch.float64"):
        fit(model)


def test_autocast_is_refused() -> None:
    """Not only the network's products but the contractions after them would lose their digits."""
    model = nn.Linear(3, 2)
    posterior = fit(model, (X.float(), Y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in (posterior.latent, ll.MAP(posterior), ll.BNN(posterior, samples=2), ll.GLM(posterior)):
            with pytest.raises(ll.InputError, match=r"autocast.*enabled=False"):
                call(X.float())
        with pytest.raises(ll.InputError, match="autocast"):
            fit(model, (X.float(), Y))


@pytest.mark.parametrize("case", ["inplace_relu_positions", "inplace_relu_instance_norm", "prelu_channels", "resnet"])
def test_layers_that_are_recognised(case: str) -> None:
    truth = truth_of(case)
    network = ll.Network(truth.model())
    network.prepare(truth.x)
    assert not network.opaque


@pytest.mark.parametrize("parameters", [None, "fc", "head"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool, parameters: Any) -> None:
    """Reentrant ones refuse gradients by some weights, and silently give none where their input asks for none."""

    def through(m: Any, x: Tensor) -> Tensor:
        return m.head(tanh(checkpoint(m.fc, x, use_reentrant=reentrant)))

    parts = {"fc": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)), "head": nn.Linear(4, 2)}
    found, plain = (
        ll.laplace(wired(use, **parts), (X, Y), ll.Categorical(), ll.Full(), 1.0, parameters=parameters, progress=False)
        for use in (through, lambda m, x: m.head(tanh(m.fc(x))))
    )
    close(found.curvature.matrix, plain.curvature.matrix)
    close(found.latent(X).cov, plain.latent(X).cov)
    assert found.network.opaque == plain.network.opaque


@pytest.mark.parametrize("case", ["prelu_functional", "distances"])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_rows_at_every_size(case: str, seeds: int) -> None:
    """torch's rules for batches of these are wrong at some sizes only."""
    truth = truth_of(case)
    network = ll.Network(truth.model())
    for n in (2, 1, len(truth.f)):
        u = noise(n, seeds, 2)
        found = network.linearize(truth.x[:n], u).jacobian.dense()
        close(found, torch.einsum("nrc,ncp->nrp", u, truth.J[:n]))


def test_a_squeeze_that_takes_the_data_axis_is_named() -> None:
    with pytest.raises(ll.InputError, match=r"single input.*shape \(\).*squeeze\(-1\)"):
        fit(wired(lambda m, x: m.head(tanh(m.fc(x))).squeeze(), fc=nn.Linear(3, 4), head=nn.Linear(4, 1)))


def test_inputs_for_which_there_are_other_outputs() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten())
    posterior = fit(model, (torch.randn(5, 1, 2, 2), torch.arange(5)))
    with pytest.raises(ll.InputError, match="48 outputs for these inputs, and gave 12 before"):
        posterior.latent(torch.randn(5, 1, 4, 4))


@pytest.mark.filterwarnings("ignore")
def test_padded_tokens_with_and_without_gradients() -> None:
    """torch's fast path, taken only without gradients, gives padded places other values."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    model = Wired(
        lambda m, x, mask: m.head(m.encoder(x, src_key_padding_mask=mask).mean(1)),
        encoder=encoder,
        head=nn.Linear(8, 2),
    )
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[::2, 3:] = True
    x = (torch.randn(6, 5, 8), mask)
    posterior = fit(model, (x, torch.arange(6) % 2))
    close(posterior.network.outputs(x), posterior.latent(x).mean, 1e-5)
    assert torch.backends.mha.get_fastpath_enabled()


def test_copies_share_the_network_and_pickles_are_refused() -> None:
    posterior = fit(wired(after_fc, fc=nn.Linear(3, 4), head=nn.Linear(4, 2)))
    copied = copy.deepcopy(posterior)
    close(copied.latent(X).cov, posterior.latent(X).cov, 0.0)
    assert not copied.network.opaque
    with pytest.raises(TypeError, match="ll.save"):
        pickle.dumps(posterior)
