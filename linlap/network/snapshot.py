"""A private copy of the user's model at its trained weights: nothing done to it is seen outside."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from linlap.checks import all_finite
from linlap.errors import InputError, NotFiniteError
from linlap.layers import taps
from linlap.types import Params


def unwrapped(model: nn.Module) -> nn.Module:
    """What torch.compile wraps: a compiled graph has no layers to tap, and its weights go by other names."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def private_copy(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with weights and buffers of its own."""
    memo: dict[int, Tensor] = {}
    for module in model.modules():
        for value in vars(module).values():
            # Tensors computed from weights (old-style weight_norm, pruning) refuse to be deep-copied.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "the model is scripted or traced by torch.jit, which hides its layers; pass the model it came from."
        )
    try:
        with torch.inference_mode(False):
            twin = copy.deepcopy(model, memo).eval().requires_grad_(False)
    except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"the model cannot be copied, which keeps it untouched: {error}. Remove what cannot be, such as locks, "
            "generators or open files."
        ) from error
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


def tables(model: nn.Module, theta: Params) -> frozenset[str]:
    """The weights that are embedding tables: a row is looked up, not multiplied."""
    names = {id(p): name for name, p in theta.items()}
    found = (module.weight for module in model.modules() if isinstance(module, nn.Embedding))
    return frozenset(names[id(weight)] for weight in found if id(weight) in names)


def outlines(model: nn.Module, theta: Params) -> dict[str, torch.Size]:
    """Shapes, flat where no known layer takes the parameter for a matrix: as structures see them before any data."""
    norms = nn.LayerNorm | nn.RMSNorm
    owners = [module for module in model.modules() if taps.dispatch(type(module)) is not taps.dispatch(nn.Module)]
    factored = {id(getattr(module, "weight", None)) for module in owners if not isinstance(module, norms)}
    return {name: p.shape if id(p) in factored else torch.Size([p.numel()]) for name, p in theta.items()}


def check_dtypes(theta: Params) -> None:
    """One dtype and device for all weights, of the dtypes that leave enough digits."""
    (first, p), *others = theta.items()
    if p.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"the weights {first!r} are {p.dtype}; linearising takes float32 or float64: pass model.float()."
        )
    for name, q in others:
        if (q.dtype, q.device) != (p.dtype, p.device):
            raise InputError(
                f"the weights {name!r} are {q.dtype} on {q.device} but {first!r} {p.dtype} on {p.device}; they must "
                "be of one kind: pass model.float() or model.double(), on one device."
            )


def choose(model: nn.Module, parameters: str | Iterable[str] | None) -> list[str]:
    """Names of the weights to be uncertain about, in the model's order; frozen ones are left out."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InputError("the model has no parameter with requires_grad=True, so there is nothing to infer.")
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise InputError(f"the weights {name!r} of a lazy layer have no values yet; run the model once first.")
        if not all_finite(p):
            raise NotFiniteError(f"the weights {name!r} have NaN or infinite entries; the training diverged.")
    if parameters is None:
        return list(trainable)
    aliases = _aliases(model, trainable)
    if isinstance(parameters, str):
        parameters = _last_layer(model, aliases) if parameters == "last" else [parameters]
    given = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    if not all(isinstance(part, str) for part in given):
        raise InputError(
            f"parameters holds a {next(type(part).__name__ for part in given if not isinstance(part, str))}; pass None "
            "for all, 'last', or names, module names or patterns as strings."
        )
    chosen = _matching(aliases, given)
    return [name for name in trainable if name in chosen]


def _aliases(model: nn.Module, trainable: Mapping[str, Tensor]) -> dict[str, str]:
    """Every name of the trainable parameters, with the one they go by: a tied one has several."""
    first = {id(p): name for name, p in trainable.items()}
    return {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False) if id(p) in first}


def _last_layer(model: nn.Module, aliases: Mapping[str, str]) -> list[str]:
    """The parameters of the last registered module that holds trainable ones itself."""
    for prefix, module in reversed(list(model.named_modules())):
        own = [f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)]
        if any(name in aliases for name in own):
            return [name for name in own if name in aliases]
    return list(aliases)


def _fits(alias: str, pattern: str) -> bool:
    """Whether the parameter, or a module that holds it, goes by that name."""
    parts = alias.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _matching(aliases: Mapping[str, str], patterns: Sequence[str]) -> set[str]:
    """Parameters with a name that equals a pattern, matches it as a glob, or lies in the module it names."""
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for alias, name in aliases.items() if _fits(alias, pattern)}
        if not found:
            names = list(aliases)
            shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise InputError(
                f"parameters={pattern!r} matches no trainable parameter. There are: {shown}. Pass names, "
                "module names, patterns such as 'encoder.*', or 'last'."
            )
        chosen |= found
    if not chosen:
        raise InputError("parameters=[] leaves nothing to infer; pass None for all, 'last', or some names.")
    return chosen
