"""What known layers were called on during a forward pass, and where autograd finds the gradients at their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from linlap.jacobian import DenseBlock, ParameterBlock
from linlap.layers import Rule, taps

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: rules for its parameters, by their full names, and the place of its output's gradient.

    The edge is taken before any later in-place operation, so an in-place activation does no harm.
    """

    rules: Mapping[str, Rule]
    own: Mapping[str, str]
    """Full names by the module's own."""
    edge: GradientEdge
    output: torch.Size
    spatial: bool
    """Whether the layer has several positions for each input, as convolutions have."""


@dataclass
class Tape:
    """Filled by hooks while it is recording."""

    n: int
    calls: list[Call] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    """Parameters of a known layer in a call that has no normal form."""


class Recorder:
    """Hooks on a private copy of a model, idle unless a tape is in."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        self._tape: Tape | None = None
        wanted = set(names)
        first = {id(p): name for name, p in model.named_parameters()}
        for module in model.modules():
            own = {key: first[id(p)] for key, p in module.named_parameters(recurse=False) if id(p) in first}
            own = {key: name for key, name in own.items() if name in wanted}
            if own and taps.dispatch(type(module)) is not taps.dispatch(nn.Module):
                module.register_forward_hook(_hook(self, own), with_kwargs=True)

    @contextmanager
    def recording(self, n: int) -> Iterator[Tape]:
        self._tape = Tape(n)
        try:
            yield self._tape
        finally:
            self._tape = None

    def note(self, module: nn.Module, own: Mapping[str, str], args: tuple[Any, ...], output: Any) -> Any:
        """The output as the model is to go on with it."""
        tape = self._tape
        if tape is None:
            return output
        if isinstance(output, Tensor) and output._is_view():
            # An in-place operation on a view makes its gradient's place in the graph anew; on a copy it does not.
            output = output.clone()
        rules: dict[str, Rule] = {}
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor) and output.requires_grad:
            x = args[0].detach()
            if x.ndim and x.shape[0] and x.shape[0] % tape.n == 0 and output.shape[0] == x.shape[0]:
                rules = taps(module, x, tape.n)
        known = {name: rules[key] for key, name in own.items() if key in rules}
        tape.unreadable.update(name for name in own.values() if name not in known)
        if known:
            spatial = output.numel() > tape.n * output.shape[-1] or output.ndim > 2
            tape.calls.append(Call(known, own, get_gradient_edge(output), output.shape, spatial))
        return output


def biases_of(calls: Sequence[Call]) -> dict[str, str]:
    """The bias of each weight that is used by the same calls, and no others."""
    found: dict[str, str] = {}
    users = {
        name: [index for index, call in enumerate(calls) if name in call.rules] for call in calls for name in call.rules
    }
    for call in calls:
        weight, bias = call.own.get("weight", ""), call.own.get("bias", "")
        if {weight, bias} <= call.rules.keys() and users[weight] == users[bias]:
            found[weight] = bias
    return found


def _hook(recorder: Recorder, own: Mapping[str, str]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return recorder.note(module, own, args or tuple(kwargs.values()), output)

    return hook


@dataclass(frozen=True, eq=False)
class TapedBlocks(Mapping[str, ParameterBlock]):
    """Blocks made from calls and gradients when they are asked for, and not kept.

    With `once`, a block's gradients are let go when it is made: whoever contracts block by block then never
    holds all of them beside the largest intermediate.
    """

    shapes: Mapping[str, torch.Size]
    parts: dict[str, list[tuple[Rule, Tensor]]]
    dense: dict[str, Tensor]
    once: bool = False

    def __getitem__(self, name: str) -> ParameterBlock:
        if name in self.dense:
            return DenseBlock(self._take(self.dense, name), self.shapes[name])
        blocks = [rule(g) for rule, g in self._take(self.parts, name)]
        if len({type(block) for block in blocks}) > 1:
            raise TypeError(f"{name} is used by layers of different kinds")
        return type(blocks[0]).join(blocks)

    def _take(self, store: dict[str, T], name: str) -> T:
        return store.pop(name) if self.once else store[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
