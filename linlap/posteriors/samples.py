"""Outputs of the network under weights drawn from a posterior."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from linlap.linalg import Diagonal
from linlap.network import Network
from linlap.network.inputs import count
from linlap.posteriors.weight import WeightPosterior
from linlap.types import Inputs, Params

SAMPLES = 100


def sampled_outputs(
    posterior: WeightPosterior, x: Inputs, k: int | None, generator: torch.Generator, *, checked: bool = False
) -> Tensor:
    """f(x; θ_s), `[k, n, C]`, of 100 where k is None; `checked` where the network has been run on x before.

    Where the posterior is diagonal, linear layers that see each input once are sampled at their outputs
    instead (local reparameterisation): the law is the same for each input, the noise differs between inputs,
    and averages over data settle sooner.
    """
    network = posterior.network
    if not checked:
        network.outputs(x)  # says what is wrong with x, which calls with other weights do not
    operators = posterior.precision.blocks.values()
    local = _local_layers(network, x) if all(isinstance(op, Diagonal) for op in operators) else {}
    replaced = {name for layer in local.values() for name in layer.values()}
    spread = posterior.variance() if local else {}
    centre = network.named(posterior.mean.to(network.dtype))
    means = {name: m for name, m in centre.items() if name in replaced}
    done = []
    with torch.no_grad():
        for _ in range(SAMPLES if k is None else k):
            drawn = {name: v[0] for name, v in posterior.sample(1, generator).items() if name not in replaced}
            with _noisy(local, spread, generator):
                done.append(network.outputs_at(means | drawn, x))
    return torch.stack(done)


def _local_layers(network: Network, x: Inputs) -> dict[nn.Module, dict[str, str]]:
    """Linear layers called once on one row an input, with the full names of their inferred parameters.

    Weights that act on an input more than once must be the same each time: those of several layers stay out.
    """
    names = {id(p): name for name, p in network.theta.items()}
    rows: dict[nn.Module, list[bool]] = {}
    n = count(x)

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        rows.setdefault(module, []).append(out.ndim == 2 and len(out) == n)

    handles = [
        module.register_forward_hook(note, with_kwargs=True)
        for module in network.model.modules()
        if type(module) is nn.Linear
    ]
    try:
        network.outputs(x)
    finally:
        for handle in handles:
            handle.remove()
    users = Counter(id(p) for module in network.model.modules() for p in module.parameters(recurse=False))
    found: dict[nn.Module, dict[str, str]] = {}
    for module, calls in rows.items():
        own = {key: p for key, p in module.named_parameters(recurse=False) if id(p) in names}
        alone = all(users[id(p)] == 1 and names[id(p)] not in network.opaque for p in own.values())
        if calls == [True] and "weight" in own and alone:
            found[module] = {key: names[id(p)] for key, p in own.items()}
    return found


@contextmanager
def _noisy(
    layers: Mapping[nn.Module, Mapping[str, str]], variance: Params, generator: torch.Generator
) -> Iterator[None]:
    """Adds to each layer's output the noise that its weights' variances amount to."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Tensor:
        own = layers[module]
        (given,) = args or kwargs.values()
        spread = given.square() @ variance[own["weight"]].mT
        if "bias" in own:
            spread = spread + variance[own["bias"]]
        noise = torch.randn(out.shape, generator=generator, dtype=out.dtype, device=out.device)
        return out + spread.sqrt() * noise

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
