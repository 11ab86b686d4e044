"""Posteriors on disk: one safetensors file with the numbers, and JSON in its header with everything else.

Values are written field by field and made again from a closed list of classes, so that loading runs no code
from the file.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from linlap import curvature, inducing, likelihoods
from linlap.errors import InputError
from linlap.network import Network
from linlap.network.inputs import map_tensors
from linlap.network.snapshot import unwrapped
from linlap.posteriors import Diagnostics, FunctionPosterior, Projection, Refinement, SamplePosterior, WeightPosterior
from linlap.posteriors.points import Points, root_of
from linlap.prior import Prior

FORMAT = 1

_EXPORTED = [getattr(package, name) for package in (curvature, likelihoods) for name in package.__all__]
_CLASSES: dict[str, Any] = {
    kind.__name__: kind
    for kind in [*_EXPORTED, *inducing.CHOICES, Diagnostics, Prior, Projection, Refinement]
    if isinstance(kind, type) and is_dataclass(kind)
}
_NAMES: dict[Any, str] = {kind: name for name, kind in _CLASSES.items()}


Posterior = WeightPosterior | FunctionPosterior | SamplePosterior


def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior; what was there is replaced only once all is written.

    Of a Gaussian process its inputs are written, and what was summed over data; kernels are made again when needed.
    """
    if not isinstance(posterior, WeightPosterior | FunctionPosterior | SamplePosterior):
        raise InputError(
            f"cannot save a {type(posterior).__name__}; pass what ll.laplace or ll.gaussian_process returned."
        )
    tensors: dict[str, Tensor] = {f"theta/{name}": p.detach() for name, p in posterior.network.theta.items()}
    header = {
        "format": FORMAT,
        "posterior": {key: _pack(value, tensors, key) for key, value in _parts_of(posterior).items()},
        "rest": fingerprints(posterior.network),
    }
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    if target.is_dir() or not target.parent.is_dir():
        wrong = "is a folder" if target.is_dir() else f"lies in a folder that does not exist ({target.parent})"
        raise InputError(f"{target} {wrong}; pass the path of a file, such as 'posterior.safetensors'.")
    whole = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
    try:
        save_file(whole, partial, metadata={"linlap": json.dumps(header)})
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _parts_of(posterior: Posterior) -> dict[str, Any]:
    """All that makes a posterior besides its network."""
    if isinstance(posterior, SamplePosterior):
        return {key: getattr(posterior, key) for key in ("likelihood", "draws", "chains", "diagnostics")}
    own: tuple[str, ...] = ("structure", "curvature")
    rest: dict[str, Any] = {}
    if isinstance(posterior, FunctionPosterior):
        own = ("inducing", "totals", "scale", "projection")
        rest = {"inputs": posterior.points.x, "at": posterior.points.at, "coupled": posterior.coupled}
    return {key: getattr(posterior, key) for key in ("likelihood", "prior", "shift", "refinement", *own)} | rest


def _posterior_of(network: Network, parts: dict[str, Any]) -> Posterior:
    if "curvature" in parts:
        return WeightPosterior(network, **parts)
    if "draws" in parts:
        return SamplePosterior(network, **parts)
    x, at, coupled = parts.pop("inputs"), parts.pop("at", None), parts.pop("coupled")
    root = root_of(parts["likelihood"], coupled) if parts["projection"] is None else None
    points = Points(network, map_tensors(x, lambda t: t), coupled, root, at=at)
    return FunctionPosterior(network, points=points, **parts)


def load(path: str | os.PathLike[str], model: nn.Module) -> Posterior:
    """A saved posterior around a model of the same architecture, on the device that model is on.

    The weights it is about come from the file, so the model need not be trained; those it is not about, and
    buffers, must be the ones it was fitted with.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model is a {type(model).__name__}; pass a torch.nn.Module of the architecture that was saved."
        )
    model = unwrapped(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    header, tensors = _read(Path(path), device)
    try:
        rest, values = header["rest"], {key: _unpack(value, tensors) for key, value in header["posterior"].items()}
        theta = {key.removeprefix("theta/"): t for key, t in tensors.items() if key.startswith("theta/")}
        theta = {name: theta[name] for name, _ in model.named_parameters() if name in theta} | theta
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read as a saved posterior: it lacks or adds {error}") from error
    _check_parameters(model, theta)
    network = Network(model, theta=theta)
    now = fingerprints(network)
    other = sorted(name for name in rest.keys() | now.keys() if rest.get(name) != now.get(name))
    if other:
        raise InputError(
            f"{_some(other)} of the model differ from those the posterior was fitted with; pass the model with its "
            "trained weights and buffers."
        )
    try:
        return _posterior_of(network, values)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as a saved posterior: it lacks or adds {error}") from error


def _read(path: Path, device: torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.exists():
        raise InputError(f"there is no file {path}; pass the path that ll.save wrote.")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = json.loads((file.metadata() or {}).get("linlap", "null"))
            keys = file.keys()
            tensors = {key: file.get_tensor(key) for key in keys}
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read as a saved posterior: {error}") from error
    if not isinstance(header, dict):
        raise InputError(f"{path} is a safetensors file, but not one that ll.save wrote.")
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {header.get('format')}, this version reads {FORMAT}; save it again with this version, "
            "or load it with the one that wrote it."
        )
    return header, tensors


def _check_parameters(model: nn.Module, theta: Mapping[str, Tensor]) -> None:
    own = dict(model.named_parameters())
    missing = sorted(theta.keys() - own.keys())
    if missing:
        raise InputError(f"the model has no parameter {_some(missing)}, which the posterior is about.")
    for name, saved in theta.items():
        if own[name].shape != saved.shape or own[name].dtype != saved.dtype:
            raise InputError(
                f"the parameter {name!r} is {own[name].dtype} {tuple(own[name].shape)} in the model but {saved.dtype} "
                f"{tuple(saved.shape)} in the file; pass a model of the architecture that was saved."
            )


def fingerprints(network: Network) -> dict[str, str]:
    """Checksums of what a network computes with besides the weights it is uncertain about."""
    rest = {**dict(network.model.named_parameters()), **dict(network.model.named_buffers())}
    return {name: _checksum(t.detach()) for name, t in rest.items() if name not in network.theta}


def _checksum(t: Tensor) -> str:
    raw = t.cpu().contiguous().flatten().view(torch.uint8) if t.numel() else t.new_zeros(0, dtype=torch.uint8).cpu()
    return f"{t.dtype}{list(t.shape)}:{zlib.crc32(raw.numpy().tobytes()):08x}"


def _some(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _pack(value: Any, tensors: dict[str, Tensor], key: str) -> Any:
    """A value as JSON; its tensors go into `tensors` under keys that start with `key`."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, Mapping):
        return {"map": {name: _pack(part, tensors, f"{key}/{name}") for name, part in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_pack(part, tensors, f"{key}/{index}") for index, part in enumerate(value)]}
    if is_dataclass(value) and type(value) in _NAMES:
        parts = {f.name: _pack(getattr(value, f.name), tensors, f"{key}/{f.name}") for f in fields(value)}
        return {"class": _NAMES[type(value)], "fields": parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Integral):  # numpy's
        return int(value)
    raise InputError(f"cannot save {value!r} of type {type(value).__name__}: only values of this library can be saved.")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "size" in value:
        return torch.Size(value["size"])
    if "list" in value:
        return [_unpack(part, tensors) for part in value["list"]]
    if "map" in value:
        return {name: _unpack(part, tensors) for name, part in value["map"].items()}
    if value.get("class") not in _CLASSES:
        raise InputError(f"the file names a class {value.get('class')!r} that this version does not know.")
    return _CLASSES[value["class"]](**{name: _unpack(part, tensors) for name, part in value["fields"].items()})
