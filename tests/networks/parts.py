"""Inputs and modules that the networks of the cases are made of."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Linear, Sequential
from torch.nn.functional import linear
from torch.nn.utils import parametrize

from tests.networks.case import Draw, NetworkCase
from tests.networks.forward import classifier, pooled

# Inputs


def normal(*shape: int) -> Draw:
    return lambda: torch.randn(*shape, dtype=torch.float64)


def tokens(vocabulary: int, *shape: int) -> Draw:
    return lambda: torch.randint(vocabulary, shape)


def together(*draws: Draw, **named: Draw) -> Draw:
    """Several inputs: a tuple, or a dict if they have names."""
    return lambda: {name: draw() for name, draw in named.items()} or tuple(draw() for draw in draws)


def padded_sequences() -> Any:
    return torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([3, 5, 2, 4])


def words_and_mask() -> Any:
    return {"input_ids": torch.randint(7, (3, 6)), "attention_mask": torch.ones(3, 6).tril(3).long()}


# Parts


class Wired(nn.Module):
    """Named parts, and the function of them and the inputs that is the forward pass."""

    def __init__(self, use: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.use(self, *args, **kwargs)


class TakesDict(Wired):
    """Takes its inputs as one dict, by position."""

    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.use(self, **batch)


class MaskedLinear(Linear):
    """A Linear by type but not by what it computes."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight.tril(), self.bias)


class StandardizedConv2d(nn.Conv2d):
    """A Conv2d by type but not by what it computes."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def InplaceReLU() -> nn.Module:
    return nn.ReLU(inplace=True)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.Tanh) -> Sequential:
    layers: list[nn.Module] = []
    for sides in itertools.pairwise(sizes):
        layers += [Linear(*sides), act()]
    return Sequential(*layers[:-1])


def headed(shape: tuple[int, ...], *body: nn.Module) -> Sequential:
    """A body for inputs of this shape, and all that it gives into one Linear."""
    features = Sequential(*body, nn.Tanh(), nn.Flatten())
    with torch.no_grad():
        size = features.eval()(torch.zeros(1, *shape)).shape[1]
    return Sequential(*features, Linear(size, 2))


def residual_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """As in torchvision's ResNets, in-place activations and in-place sum included."""

    def use(m: Any, x: Tensor) -> Tensor:
        out = m.bn2(m.conv2(m.relu(m.bn1(m.conv1(x)))))
        out += m.downsample(x)
        return m.relu(out)

    shortcut = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
    return Wired(
        use,
        conv1=nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        bn1=nn.BatchNorm2d(outputs),
        relu=InplaceReLU(),
        conv2=nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        bn2=nn.BatchNorm2d(outputs),
        downsample=Sequential(*shortcut) if stride > 1 else nn.Identity(),
    )


def resnet() -> nn.Module:
    stem = (nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), InplaceReLU())
    blocks = (residual_block(3, 3, 1), residual_block(3, 4, 2))
    return Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), Linear(4, 3))


def half_biased() -> nn.Module:
    return Sequential(Linear(4, 4), nn.Tanh(), Linear(4, 4, bias=False), nn.Tanh(), Linear(4, 2))


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 6, dropout=0.2, batch_first=True)


def words_in_and_out() -> nn.Module:
    return Wired(pooled, fc=nn.Embedding(5, 4), head=Linear(4, 5))


def hugging_face() -> nn.Module:
    words, places = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(6, 4)
    return Wired(classifier, words=words, places=places, encoder=encoder_layer(), head=Linear(4, 3))


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def hooked(model: nn.Module, layer: str) -> nn.Module:
    """With hooks of the user's, which change what goes in and what comes out."""
    model.get_submodule(layer).register_forward_pre_hook(lambda _, args: (args[0] + 0.5,))
    model.get_submodule(layer).register_forward_hook(lambda _, args, out: out * args[0].sum(-1, keepdim=True))
    return model


def tied(model: Any, target: str, source: str) -> nn.Module:
    """The weight of module target becomes that of module source."""
    model.get_submodule(target).weight = model.get_submodule(source).weight
    return model


def parametrized(module: nn.Module, parametrization: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", parametrization)
    return module


def old_weight_norm(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


# Cases


Part = tuple[int, int] | Callable[[], nn.Module | nn.Parameter]


def over(name: str, shape: tuple[int, ...], *body: Callable[[], nn.Module]) -> NetworkCase:
    """These layers one after the other, tanh, and a Linear; 3 inputs of this shape."""
    return NetworkCase(name, lambda: headed(shape, *(make() for make in body)), normal(3, *shape), 2)


def net(
    name: str,
    use: Callable[..., Any],
    x: tuple[int, ...] | Draw,
    outputs: int = 2,
    *,
    train: bool = False,
    stops: bool = False,
    model: Callable[..., nn.Module] = Wired,
    **parts: Part,
) -> NetworkCase:
    """Parts wired by `use`. A pair of sizes is a Linear; without a `head` given it has `Linear(4, 2)`."""

    def make() -> nn.Module:
        every = {"head": (4, 2), **parts}
        return model(use, **{key: Linear(*p) if isinstance(p, tuple) else p() for key, p in every.items()})

    return NetworkCase(name, make, normal(*x) if isinstance(x, tuple) else x, outputs, train, stops)
