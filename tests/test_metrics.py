"""Metrics against naive loops and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor
from torch import distributions as td

from linlap import metrics, ood
from linlap.errors import InputError, NotFiniteError
from linlap.uncertainty import Uncertainty


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def classes() -> tuple[td.Categorical, Tensor]:
    logits = 2 * torch.randn(300, 5, generator=generator())
    return td.Categorical(logits=logits), torch.randint(5, (300,), generator=generator())


@pytest.fixture
def binary() -> tuple[td.Bernoulli, Tensor]:
    logits = 2 * torch.randn(300, generator=generator())
    return td.Bernoulli(logits=logits), torch.randint(2, (300,), generator=generator())


def naive_ece(probabilities: Tensor, y: Tensor, bins: int) -> float:
    error = 0.0
    for b in range(bins):
        members = [i for i, p in enumerate(probabilities.double()) if b / bins < p.max().item() <= (b + 1) / bins]
        if members:
            hits = np.mean([probabilities[i].argmax().item() == y[i].item() for i in members])
            trust = np.mean([probabilities[i].max().item() for i in members])
            error += len(members) / len(y) * abs(hits - trust)
    return error


def test_classes(classes: tuple[td.Categorical, Tensor]) -> None:
    predictive, y = classes
    p = predictive.probs.double()
    assert metrics.nll(predictive, y) == pytest.approx(sk.log_loss(y, p / p.sum(-1, keepdim=True)), rel=1e-6)
    assert metrics.accuracy(predictive, y) == pytest.approx(sk.accuracy_score(y, p.argmax(-1)))
    for bins in (1, 7, 10):
        assert metrics.ece(predictive, y, bins) == pytest.approx(naive_ece(p, y, bins))
    naive = np.mean([sum((p[i, c].item() - (y[i] == c).item()) ** 2 for c in range(5)) for i in range(300)])
    assert metrics.brier(predictive, y) == pytest.approx(naive)


def test_binary(binary: tuple[td.Bernoulli, Tensor]) -> None:
    predictive, y = binary
    p = predictive.probs.double()
    assert metrics.nll(predictive, y) == pytest.approx(sk.log_loss(y, p), rel=1e-6)
    assert metrics.accuracy(predictive, y) == pytest.approx(sk.accuracy_score(y, p > 0.5))
    assert metrics.brier(predictive, y) == pytest.approx(sk.brier_score_loss(y, p))
    assert metrics.ece(predictive, y) == pytest.approx(naive_ece(torch.stack([1 - p, p], -1), y, 10))
    for same in (y.unsqueeze(1), y.float(), y.bool()):
        assert metrics.nll(predictive, same) == metrics.nll(predictive, y)


def test_many_labels_count_label_by_label() -> None:
    predictive = td.Bernoulli(logits=torch.randn(50, 3, generator=generator()))
    y = torch.randint(2, (50, 3), generator=generator())
    flat = td.Bernoulli(logits=predictive.logits.reshape(-1))
    for name in ("accuracy", "ece", "brier"):
        assert getattr(metrics, name)(predictive, y) == pytest.approx(getattr(metrics, name)(flat, y.reshape(-1)))
    assert metrics.nll(predictive, y) == pytest.approx(3 * metrics.nll(flat, y.reshape(-1)), rel=1e-6)


def test_bins_are_closed_on_the_right() -> None:
    predictive = td.Bernoulli(probs=torch.tensor([0.75, 0.76, 1.0], dtype=torch.float64))
    curve = metrics.reliability(predictive, torch.ones(3), bins=4)
    assert curve.count.tolist() == [0, 0, 1, 2]
    assert curve.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.confidence[2:].tolist() == pytest.approx([0.75, 0.88])
    assert curve.accuracy[:2].isnan().all()


def test_nll_of_a_sure_mistake_is_not_capped() -> None:
    assert metrics.nll(td.Bernoulli(logits=torch.tensor([-90.0])), torch.ones(1)) == pytest.approx(90)
    assert metrics.nll(td.Categorical(logits=torch.tensor([[0.0, 90.0]])), torch.tensor([0])) == pytest.approx(90)


def numeric_crps(mean: float, scale: float, y: float) -> float:
    grid = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    cdf = 0.5 * (1 + torch.erf((grid - mean) / scale / math.sqrt(2)))
    return torch.trapezoid((cdf - (grid >= y).double()).square(), grid).item()


def test_regression() -> None:
    mean, scale = torch.tensor([[0.3], [-1.0]]).double(), torch.tensor([[0.5], [2.0]]).double()
    y = torch.tensor([[1.0], [-1.5]]).double()
    predictive = td.Independent(td.Normal(mean, scale), 1)
    assert metrics.rmse(predictive, y) == pytest.approx(sk.root_mean_squared_error(y, mean))
    crps = np.mean([numeric_crps(m.item(), s.item(), t.item()) for m, s, t in zip(mean, scale, y, strict=True)])
    assert metrics.crps(predictive, y) == pytest.approx(crps, abs=1e-4)
    assert metrics.crps(predictive, y.squeeze(1)) == metrics.crps(predictive, y)
    full = td.MultivariateNormal(mean, scale.square().unsqueeze(-1))
    assert metrics.crps(full, y) == pytest.approx(crps, abs=1e-4)
    assert metrics.nll(full, y) == pytest.approx(-td.Normal(mean, scale).log_prob(y).mean().item())
    several = td.MultivariateNormal(torch.zeros(4, 3), torch.eye(3).expand(4, 3, 3))
    assert metrics.nll(several, torch.ones(4, 3)) == pytest.approx(1.5 * (math.log(2 * math.pi) + 1))


def test_crps_from_samples() -> None:
    mean, scale, y = torch.zeros(20, 1), torch.ones(20, 1), torch.linspace(-2, 2, 20).reshape(20, 1)
    parts = td.Independent(td.Normal(mean.unsqueeze(1).expand(20, 2, 1), scale.unsqueeze(1).expand(20, 2, 1)), 1)
    mixture = td.MixtureSameFamily(td.Categorical(logits=torch.zeros(20, 2)), parts)
    state = torch.random.get_rng_state()
    found = metrics.crps(mixture, y, samples=5000)
    assert found == pytest.approx(metrics.crps(td.Normal(mean, scale), y), abs=0.01)
    assert metrics.crps(mixture, y, samples=5000) == found
    assert torch.equal(torch.random.get_rng_state(), state)
    assert 0 < metrics.crps(td.Independent(td.Poisson(scale), 1), torch.ones(20, 1)) < 1


def test_ood_auc() -> None:
    low = torch.randn(200, generator=generator()).round(decimals=1)
    high = (torch.randn(150, generator=generator()) + 0.5).round(decimals=1)
    truth = torch.cat([torch.zeros(200), torch.ones(150)])
    assert metrics.ood_auc(low, high) == pytest.approx(sk.roc_auc_score(truth, torch.cat([low, high])), abs=1e-12)
    assert metrics.ood_auc(torch.zeros(3), torch.zeros(5)) == 0.5
    assert metrics.ood_auc(torch.zeros(3), torch.ones(5)) == 1.0


def test_ood_auc_of_predictives_uses_their_entropy() -> None:
    sure, unsure = (td.Categorical(logits=s * torch.randn(40, 4, generator=generator())) for s in (3.0, 1.0))
    assert metrics.ood_auc(sure, unsure) == metrics.ood_auc(sure.entropy(), unsure.entropy()) > 0.5
    assert ood.ood_auc is metrics.ood_auc


def test_scores() -> None:
    predictive = td.Categorical(probs=torch.tensor([[0.7, 0.3], [0.5, 0.5]]))
    assert ood.lack_of_confidence(predictive).tolist() == pytest.approx([0.3, 0.5])
    labels = td.Bernoulli(probs=torch.tensor([[0.7, 0.3], [0.5, 1.0]]))
    assert ood.lack_of_confidence(labels).tolist() == pytest.approx([0.3, 0.25])
    assert ood.predictive_entropy(labels).shape == (2,)
    assert ood.variance_score(td.Independent(td.Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1)).tolist() == [
        3,
        3,
    ]
    with pytest.raises(InputError, match="class index"):
        ood.variance_score(predictive)
    with pytest.raises(InputError, match="variance_score"):
        ood.lack_of_confidence(td.Normal(torch.zeros(2), torch.ones(2)))
    parts = Uncertainty(torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2, 2), torch.ones(2), torch.zeros(2))
    assert ood.mutual_information(parts) is parts.mutual_information


@pytest.mark.parametrize("name", ["nll", "accuracy", "ece", "brier"])
@pytest.mark.parametrize(
    "y",
    [torch.tensor([0, 1]), torch.tensor([0, 1, 5]), torch.tensor([0.0, 1.0, 1.0]), torch.eye(3), [0, 1, 2]],
)
def test_bad_classes(name: str, y: object) -> None:
    with pytest.raises(InputError):
        getattr(metrics, name)(td.Categorical(logits=torch.zeros(3, 3)), y)


def test_other_bad_input(classes: tuple[td.Categorical, Tensor]) -> None:
    normal = td.Independent(td.Normal(torch.zeros(3, 1), torch.ones(3, 1)), 1)
    for name in ("accuracy", "ece", "brier"):
        with pytest.raises(InputError, match="needs classes"):
            getattr(metrics, name)(normal, torch.zeros(3, 1))
    for name in ("rmse", "crps"):
        with pytest.raises(InputError, match="use brier"):
            getattr(metrics, name)(*classes)
    with pytest.raises(NotFiniteError):
        metrics.nll(normal, torch.tensor([0.0, 1.0, float("nan")]))
    with pytest.raises(InputError, match="0 or 1"):
        metrics.nll(td.Bernoulli(logits=torch.zeros(2)), torch.tensor([0, 2]))
    with pytest.raises(InputError, match="shape"):
        metrics.nll(td.Independent(td.Normal(torch.zeros(3, 3), 1.0), 1), torch.zeros(3))
    with pytest.raises(NotFiniteError):
        metrics.ood_auc(torch.tensor([0.0, float("nan")]), torch.zeros(2))
    with pytest.raises(InputError, match="one score"):
        metrics.ood_auc(torch.zeros(0), torch.zeros(2))
    with pytest.raises(InputError, match="bins=0"):
        metrics.ece(*classes, bins=0)
    mixture = td.MixtureSameFamily(td.Categorical(logits=torch.zeros(2)), td.Normal(torch.zeros(2), 1.0))
    with pytest.raises(InputError, match="no closed entropy"):
        metrics.predictive_entropy(mixture)


@pytest.mark.parametrize("given", [3, torch.ones(4, 2), lambda x: x])
def test_what_is_no_distribution(given: object) -> None:
    with pytest.raises(InputError, match="is no distribution; pass what predictive\\(x\\) gives"):
        metrics.nll(given, torch.zeros(4))  # type: ignore[arg-type]
