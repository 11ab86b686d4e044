"""The floor: what any exact method must at least do, one forward and C backward passes, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Floor:
    """One forward pass of a batch and a backward pass from each output.

    to_layers: gradients of the outputs of all layers with weights, not of the weights themselves (less work:
    no weight gradients are formed). batched: one vectorised backward pass instead of C single ones.
    """

    to_layers: bool = False
    batched: bool = False

    @property
    def name(self) -> str:
        return "floor-" + ("layers" if self.to_layers else "weights") + ("-batched" if self.batched else "")

    def prepare(self, model: nn.Module, x: Tensor) -> Callable[[], None]:
        """A call that does the passes once. The model is taken over."""
        if not self.to_layers:
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            return lambda: self._backward(model(x), weights)
        taps = _tap_layer_outputs(model)

        def passes() -> None:
            taps.clear()
            outputs = model(x)
            self._backward(outputs, taps)

        return passes

    def _backward(self, outputs: Tensor, targets: Sequence[Tensor]) -> None:
        classes = outputs.shape[1]
        if self.batched:
            seeds = torch.eye(classes, dtype=outputs.dtype, device=outputs.device)[:, None, :].expand(
                classes, *outputs.shape
            )
            torch.autograd.grad(outputs, targets, seeds, is_grads_batched=True)
            return
        totals = outputs.sum(dim=0)
        for c in range(classes):
            torch.autograd.grad(totals[c], targets, retain_graph=c + 1 < classes)


# The first is the one the bars are set against.
FLOORS = (Floor(), Floor(to_layers=True), Floor(batched=True), Floor(to_layers=True, batched=True))


def _tap_layer_outputs(model: nn.Module) -> list[Tensor]:
    """Freeze the weights and fill the returned list with the outputs of their layers at each forward pass."""
    taps: list[Tensor] = []

    def tap(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # With frozen weights the first layer's output is a leaf; from there on autograd has to follow.
        taps.append(output if output.requires_grad else output.requires_grad_())

    for module in model.modules():
        if any(weight.requires_grad for weight in module.parameters(recurse=False)):
            module.register_forward_hook(tap)
    model.requires_grad_(False)
    return taps
