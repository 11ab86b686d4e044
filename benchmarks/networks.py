"""The networks measured, of plain layers, sequential where they can be: so that every peer accepts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    """Dense layers of the given widths, input and output included, with an activation between them."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        if index:
            layers.append(activation())
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def _pad_one_after() -> nn.ZeroPad2d:
    """TensorFlow's 'same' padding of a 3x3 window with stride 2 on an even size: one row and column after."""
    return nn.ZeroPad2d((0, 1, 0, 1))


def _pool_same() -> list[nn.Module]:
    # Zeros stand for TensorFlow's -inf padding: every pool here follows a ReLU.
    return [_pad_one_after(), nn.MaxPool2d(3, stride=2)]


def c3d3() -> nn.Sequential:
    """DeepOBS 3c3d on 3x32x32 images: ReLU convolutions, tanh dense layers."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), *_pool_same()),
        *(nn.Conv2d(64, 96, 3), nn.ReLU(), *_pool_same()),
        *(nn.Conv2d(96, 128, 3, padding=1), nn.ReLU(), *_pool_same()),
        nn.Flatten(),
        *(nn.Linear(1152, 512), nn.Tanh()),
        *(nn.Linear(512, 256), nn.Tanh()),
        nn.Linear(256, 10),
    )


def allcnn() -> nn.Sequential:
    """All-convolutional network on 3x32x32 images, without dropout."""
    return nn.Sequential(
        *(nn.Conv2d(3, 96, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()),
        *(_pad_one_after(), nn.Conv2d(96, 96, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(96, 192, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(192, 192, 3, padding=1), nn.ReLU()),
        *(_pad_one_after(), nn.Conv2d(192, 192, 3, stride=2), nn.ReLU()),
        *(nn.Conv2d(192, 192, 3), nn.ReLU()),
        *(nn.Conv2d(192, 192, 1), nn.ReLU()),
        nn.Conv2d(192, 10, 1),
        nn.AvgPool2d(6),
        nn.Flatten(),
    )


def tiny_convnet() -> nn.Sequential:
    """A convolutional network on 2x6x6 images, small enough for dense matrices."""
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.ReLU(), *_pool_same()),
        *(nn.Conv2d(3, 4, 2, padding=1), nn.Tanh(), nn.Flatten()),
        nn.Linear(36, 3),
    )


class Attention(nn.Module):
    """Multi-head self-attention with a linear layer each for queries, keys, values and projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, width = tokens.shape

        def split(x: Tensor) -> Tensor:
            return x.reshape(n, length, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(tokens)), split(self.key(tokens)), split(self.value(tokens))
        # Written out, because the fused kernel has no rule under the peers' vectorised backward passes.
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        mixed = scores.softmax(dim=-1) @ value
        return self.projection(mixed.transpose(1, 2).reshape(n, length, width))


class EncoderBlock(nn.Module):
    """A pre-norm transformer block; its layer norms are frozen."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width).requires_grad_(False)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width).requires_grad_(False)
        self.feed_forward = mlp([width, hidden, width], nn.GELU)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.feed_forward(self.norm2(tokens))


class Transformer(nn.Module):
    """Linear embedding of tokens and fixed random positions, encoder blocks, mean of tokens, linear head."""

    def __init__(
        self, inputs: int, tokens: int, width: int, heads: int, hidden: int, blocks: int, classes: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(inputs, width)
        self.register_buffer("positions", 0.1 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, hidden) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.blocks(self.embedding(x) + self.get_buffer("positions"))
        return self.head(self.norm(tokens).mean(dim=1))
