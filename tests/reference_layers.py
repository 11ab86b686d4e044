"""The oracle's book of Kronecker factors for layers other than Linear: every layer brought to the normal form by hand.

In the normal form a layer is out = W a + b at each shared position. The positions of a convolution are its output
pixels, with patches as inputs; of a transposed convolution its input pixels, which reach patches of the output; of
an embedding the places of the words, with one-hot vectors as inputs. Several calls are further positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests import reference
from tests.reference import KronFactors, LinearUse

Conv = nn.Conv1d | nn.Conv2d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d


def layer_uses(model: nn.Module, x: Any, layer: str) -> list[LinearUse]:
    """A layer's inputs a `[n, s, i]` and D = ∂f/∂out `[n, C, s, o]`, one of each a group."""
    twin, x = reference.evaluated(model), reference.doubled(x)
    module = twin.get_submodule(layer)
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        seen.append((args[0].detach().clone(), out))
        return out.clone()

    module.register_forward_hook(keep)
    data: list[list[LinearUse]] = []
    for n in range(reference.size_of(x)):
        seen.clear()
        f = reference.outputs(twin, reference.rows(x, n, n + 1))[0]
        outs = [out for _, out in seen]
        D = [torch.autograd.grad(f[c], outs, retain_graph=True) for c in range(len(f))]
        calls = [
            normal_form(module, a[0], torch.stack([D[c][call][0] for c in range(len(f))]))
            for call, (a, _) in enumerate(seen)
        ]
        data.append(stacked_uses(calls, torch.cat, -2))
    return stacked_uses(data, torch.stack, 0)


def stacked_uses(parts: list[list[LinearUse]], join: Any, axis: int) -> list[LinearUse]:
    """For each group, what several parts have of it, joined."""
    return [
        LinearUse(join([use.a for use in uses], axis), join([use.D for use in uses], axis))
        for uses in zip(*parts, strict=True)
    ]


def normal_form(module: nn.Module, a: Tensor, D: Tensor) -> list[LinearUse]:
    """For one datum: its input a and D `[C, ...]` as `[s, i]` and `[C, s, o]`, one of each a group."""
    if isinstance(module, nn.Linear):
        return [LinearUse(a.reshape(-1, a.shape[-1]), D.reshape(len(D), -1, D.shape[-1]))]
    if isinstance(module, nn.Embedding):
        words = a.reshape(-1)
        one_hot = F.one_hot(words, module.num_embeddings).double()
        trains = torch.ones(len(words)) if module.padding_idx is None else (words != module.padding_idx).double()
        return [LinearUse(one_hot * trains[:, None], D.reshape(len(D), -1, D.shape[-1]) * trains[:, None])]
    if isinstance(module, Conv):
        patches = rows_of_patches(module, padded(module, a), module.groups)
        return [LinearUse(p, d) for p, d in zip(patches, channels_last(D, module.groups), strict=True)]
    if isinstance(module, Transposed):
        reached = [rows_of_patches(module, d, module.groups, module.padding) for d in D]
        inputs = channels_last(a[None], module.groups)
        return [LinearUse(i[0], torch.stack(d)) for i, d in zip(inputs, zip(*reached, strict=True), strict=True)]
    raise ValueError(type(module))


def padded(module: Any, a: Tensor) -> Tensor:
    amounts: Sequence[int] = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(a[None], list(amounts), mode=mode)[0]


def rows_of_patches(module: Any, image: Tensor, groups: int, padding: Sequence[int] = (0, 0)) -> list[Tensor]:
    """Patches of one image `[c, ...]` by torch's unfold, `[s, c / k · kernel]` for each of k groups of channels."""
    options = [module.kernel_size, module.dilation, padding, module.stride]
    if image.ndim == 2:  # a line is an image of one row
        image = image[:, None]
        options = [(neutral, option[0]) for option, neutral in zip(options, (1, 1, 0, 1), strict=True)]
    return [F.unfold(part[None], *options)[0].T for part in image.chunk(groups)]


def channels_last(D: Tensor, groups: int) -> list[Tensor]:
    """`[C, o, ...]` as `[C, s, o / k]` for each of k groups."""
    return [part.flatten(2).mT for part in D.chunk(groups, 1)]


def kron_pairs(model: nn.Module, x: Any, layer: str, Λ: Tensor, sharing: str) -> list[KronFactors]:
    """A (averaged) and G (summed) of each group of a layer."""
    return [reference.kron_factors(use, Λ, sharing) for use in layer_uses(model, x, layer)]


def weight_block(module: nn.Module, pairs: list[KronFactors], corrected: Tensor | None = None) -> Tensor:
    """G ⊗ A in the order of the weight's entries; or with the eigenvalues that its exact block has in their basis."""
    rows_are_inputs = isinstance(module, nn.Embedding | Transposed)
    blocks, start = [], 0
    for A, G, _ in pairs:
        left, right = (A, G) if rows_are_inputs else (G, A)
        block = torch.kron(left, right)
        if corrected is not None:
            U = torch.kron(torch.linalg.eigh(left).eigenvectors, torch.linalg.eigh(right).eigenvectors)
            H = corrected[start : start + len(U), start : start + len(U)]
            block = U @ torch.diag((U.T @ H @ U).diagonal()) @ U.T
            start += len(U)
        blocks.append(block)
    return torch.block_diag(*blocks)


def kron_ggn(
    model: nn.Module, x: Any, names: Sequence[str], Λ: Tensor, sharing: str = "expand", corrected: bool = False
) -> Tensor:
    """The block diagonal matrix `[P, P]`: weights of known layers by the book, all else exactly.

    A bias beside its weight has the weight's G, unless that is over patches (transposed convolutions).
    """
    H = reference.full_ggn(reference.jacobian(model, x, names)[1], Λ)
    where, blocks = reference.slices(model, names), []
    for name in names:
        layer, _, kind = name.rpartition(".")
        module, exact = model.get_submodule(layer), H[where[name], where[name]]
        known = isinstance(module, nn.Linear | nn.Embedding | Conv | Transposed)
        if known and kind == "weight":
            pairs = kron_pairs(model, x, layer, Λ, sharing)
            blocks.append(weight_block(module, pairs, exact if corrected else None))
        elif f"{layer}.weight" in names and isinstance(module, nn.Linear | Conv):
            blocks.append(bias_block(model, x, layer, Λ, sharing))
        else:
            blocks.append(exact)
    return torch.block_diag(*blocks)


def bias_block(model: nn.Module, x: Any, layer: str, Λ: Tensor, sharing: str) -> Tensor:
    """G of each group, as if the bias's input were always 1: Σ D_sᵀ Λ D_s at the layer's outputs, or reduced first."""
    D = [use.D.sum(2, keepdim=True) if sharing == "reduce" else use.D for use in layer_uses(model, x, layer)]
    return torch.block_diag(*(torch.einsum("ncso,ncd,ndsp->op", d, Λ, d) for d in D))
