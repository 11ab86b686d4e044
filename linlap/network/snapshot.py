"""A private copy of the user's model at its trained weights: nothing done to it is seen outside."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from linlap.errors import InputError, NotFiniteError
from linlap.types import Params


def private_copy(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with weights and buffers of its own."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps; a compiled graph has no layers to tap
    memo: dict[int, Tensor] = {}
    for module in model.modules():
        for value in vars(module).values():
            # Tensors computed from weights (old-style weight_norm, pruning) refuse to be deep-copied.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    with torch.inference_mode(False):
        twin = copy.deepcopy(model, memo).eval().requires_grad_(False)
    for module in twin.modules():
        if isinstance(module, nn.Embedding):
            # Both change what autograd reports, not what the layer computes.
            module.scale_grad_by_freq = module.sparse = False
    return twin


def places(model: nn.Module, theta: Params) -> dict[str, str]:
    """Every place that holds one of these weights, each once, with the weight's name.

    torch replaces weights by place. Left to find tied ones by itself, it does not put back those of a module
    that is registered under two names.
    """
    names = {id(p): name for name, p in theta.items()}
    return {
        f"{prefix}.{key}" if prefix else key: names[id(p)]
        for prefix, module in model.named_modules()
        for key, p in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(p) in names
    }


def choose(model: nn.Module, parameters: str | Iterable[str] | None) -> list[str]:
    """Names of the weights to be uncertain about, in the model's order; frozen ones are left out."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InputError("the model has no parameter with requires_grad=True, so there is nothing to infer.")
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            raise NotFiniteError(f"the weights {name!r} have NaN or infinite entries; the training diverged.")
    if parameters is None:
        return list(trainable)
    if isinstance(parameters, str):
        parameters = _last_layer(model, trainable) if parameters == "last" else [parameters]
    return _matching(list(trainable), list(parameters))


def _last_layer(model: nn.Module, trainable: Mapping[str, Tensor]) -> list[str]:
    """The parameters of the last registered module that holds trainable ones itself."""
    for prefix, module in reversed(list(model.named_modules())):
        own = [f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)]
        if any(name in trainable for name in own):
            return [name for name in own if name in trainable]
    return list(trainable)


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Names that equal a pattern, match it as a glob, or lie in the module it names."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")]
        if not found:
            shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise InputError(
                f"parameters={pattern!r} matches no trainable parameter. There are: {shown}. Pass names, "
                "module names, patterns such as 'encoder.*', or 'last'."
            )
        chosen.update(found)
    if not chosen:
        raise InputError("parameters=[] leaves nothing to infer; pass None for all, 'last', or some names.")
    return [name for name in names if name in chosen]
