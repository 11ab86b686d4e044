"""Six points on a line, a network of two weights, and its MAP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linlap import train_map
from linlap.likelihoods import Bernoulli
from linlap.report.training import falling

X = torch.tensor([-6.0, -4.0, -2.0, 2.0, 4.0, 6.0], dtype=torch.float64)
Y = (X > 0).double()
LIKELIHOOD = Bernoulli()
PRECISION = 1.0
NETWORK = "5 tanh(wx + b)"


class Step(nn.Module):
    """f(x) = 5 tanh(w x + b), with θ = (w, b) as one layer on (x, 1): so it is for Kronecker factors, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = 5 * torch.tanh(self.layer(inputs))
        return out


def inputs(x: Tensor) -> Tensor:
    """`[n, 2]` for the network, of x `[n]`."""
    return torch.stack([x, torch.ones_like(x)], -1)


def trained(steps: int = 1500) -> nn.Module:
    """The network at its MAP, from (1, 0.1)."""
    model = Step()
    with torch.no_grad():
        model.layer.weight.copy_(torch.tensor([[1.0, 0.1]]))
    rate = falling(1e-2, steps)
    return train_map(model, (inputs(X), Y), LIKELIHOOD, PRECISION, steps=steps, rate=rate, progress=False)


def outputs(weights: Tensor, x: Tensor) -> Tensor:
    """f `[k, n]` under weights `[k, 2]` at x `[n]`, by the network itself."""
    model = Step()

    def one(theta: Tensor) -> Tensor:
        f: Tensor = torch.func.functional_call(model, {"layer.weight": theta.unsqueeze(0)}, (inputs(x),))
        return f.squeeze(-1)

    return torch.func.vmap(one, chunk_size=10_000)(weights)


def log_joint(weights: Tensor) -> Tensor:
    """log p(y, θ) `[k]` up to a constant, for weights `[k, 2]`."""
    fit = LIKELIHOOD.log_prob(Y.unsqueeze(-1), outputs(weights, X).unsqueeze(-1)).sum(-1)
    return fit - 0.5 * PRECISION * weights.square().sum(-1)
