"""Forward passes: functions of a module with named parts and of its inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, tanh
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence


def after_fc(m: Any, x: Tensor) -> Tensor:
    return m.head(tanh(m.fc(x)))


def discarded(m: Any, x: Tensor) -> Tensor:
    """One layer is called for nothing, as the auxiliary heads of some networks are in evaluation."""
    m.aside(x)
    return after_fc(m, x)


def pooled(m: Any, x: Tensor) -> Tensor:
    """The layer on every position, and the mean over them."""
    return m.head(tanh(m.fc(x)).flatten(1, -2).mean(1))


def inplace_on_view(m: Any, x: Tensor) -> Tensor:
    h = m.fc(x)
    h[:, ::2].tanh_()
    return m.head(h * h)


def attention(m: Any, x: Tensor) -> Tensor:
    """Two heads, from one packed Linear."""
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
    return m.head(m.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)).mean(1))


def self_attention(m: Any, x: Tensor) -> Tensor:
    return m.head(m.att(x, x, x)[0].mean(1))


def positions_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.att(*[x.transpose(0, 1)] * 3)[0].mean(0))


def states(m: Any, x: Tensor) -> Tensor:
    return m.head(m.rnn(x)[0].mean(1))


def packed(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    sequences = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    return m.head(m.rnn(sequences)[1][0][-1])


def unrolled(m: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), 4)
    for step in range(x.shape[1]):
        h = m.cell(x[:, step], h)
    return m.head(h)


def two_lengths(m: Any, x: Tensor) -> Tensor:
    return m.head(tanh(m.fc(x)).mean(1) * tanh(m.fc(x[:, ::2])).mean(1))


def two_inputs(m: Any, left: Tensor, right: Tensor) -> Tensor:
    return m.head(tanh(m.left(left)) * m.right(right))


def classifier(m: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
    """As Hugging Face models: tokens and a mask by keyword, an object with `.logits` returned."""
    places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    h = m.encoder(m.words(input_ids) + m.places(places), src_key_padding_mask=attention_mask == 0)
    return SimpleNamespace(logits=m.head(h[:, 0]), loss=None)


def sorted_inside(m: Any, x: Tensor) -> Tensor:
    order = x[:, 0].argsort(stable=True)
    return m.head(tanh(m.fc(x[order]))[order.argsort()])


def without_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = tanh(m.fc(x))
    return m.head(features)


def merged(m: Any, x: Tensor, inputs_axis: int) -> Tensor:
    """The two axes before the last are one to the layer."""
    return m.head(tanh(m.fc(x.flatten(0, 1))).unflatten(0, x.shape[:2]).mean(1 - inputs_axis))


def frames_merged(m: Any, x: Tensor) -> Tensor:
    return m.head(tanh(m.conv(x.flatten(0, 1))).flatten(1).unflatten(0, x.shape[:2]).mean(1))


def twins(m: Any, a: Tensor, b: Tensor) -> Tensor:
    return m.head(tanh(m.fc(torch.cat([a, b]))).unflatten(0, (2, -1)).prod(0))


def places(m: Any, x: Tensor, which: Tensor) -> Tensor:
    return m.head((x * tanh(m.fc(which.to(x.device)))).sum(1))
