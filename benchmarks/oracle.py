"""The answer by dense autograd in the obvious order, for tiny networks in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.base import PRIOR_PRECISION, Kind


def latent_covariance(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    x: Tensor,
    structure: Kind,
    exact_biases: bool = False,
    diagonal: bool = False,
) -> Tensor:
    """The covariance [n, C, C] that every library must return; see `Library` for what it is of.

    exact_biases: under Kron, take a bias's own block of the Gauss-Newton matrix instead of the peers', which
    adds up the positions of a convolution or sequence one by one. Without shared positions they are one.
    diagonal: of the softmax's curvature, under coupled outputs, keep the diagonal alone, as the peer does.
    """
    inputs, _ = data
    if structure == "coupled":
        return coupled_process(model, inputs, x, diagonal)
    if structure == "independent":
        return independent_processes(model, inputs, x)
    precision = diagonal_blocks(model, inputs) if structure == "Diagonal" else kron_blocks(model, inputs)
    if structure == "Kron" and exact_biases:
        precision |= exact_bias_blocks(model, inputs)
    blocks = jacobian(model, x)
    total = torch.zeros(())
    for name, block in blocks.items():
        size = block.shape[-1]
        covariance = torch.linalg.inv(precision[name] + PRIOR_PRECISION * torch.eye(size, dtype=block.dtype))
        total = total + torch.einsum("ncp,pq,ndq->ncd", block, covariance, block)
    return total


def coupled_process(model: nn.Module, inputs: Tensor, x: Tensor, diagonal: bool) -> Tensor:
    """J (H + δ I)⁻¹ Jᵀ with the whole generalised Gauss-Newton matrix H, in weight space."""
    outputs = model(inputs)
    probs = outputs.detach().softmax(dim=-1)
    root = torch.diag_embed((probs * (1 - probs)).sqrt()) if diagonal else hessian_sqrt(outputs)
    rows = torch.einsum("ncp,ncr->nrp", whole_jacobian(model, inputs), root).flatten(0, 1)
    precision = rows.T @ rows + PRIOR_PRECISION * torch.eye(rows.shape[1], dtype=rows.dtype)
    at_x = whole_jacobian(model, x)
    return torch.einsum("ncp,pq,ndq->ncd", at_x, torch.linalg.inv(precision), at_x)


def independent_processes(model: nn.Module, inputs: Tensor, x: Tensor) -> Tensor:
    """k** - k*ᵀ (K + Λ⁻¹)⁻¹ k* for each output by itself, with Λ = p (1 - p), as diagonal matrices."""
    probs = model(inputs).detach().softmax(dim=-1)
    known, at_x = whole_jacobian(model, inputs), whole_jacobian(model, x)
    variances = []
    for c in range(probs.shape[1]):
        j, new = known[:, c], at_x[:, c]
        noise = torch.diag(1 / (probs[:, c] * (1 - probs[:, c])))
        cross = j @ new.T / PRIOR_PRECISION
        explained = cross.T @ torch.linalg.inv(j @ j.T / PRIOR_PRECISION + noise) @ cross
        variances.append((new @ new.T / PRIOR_PRECISION - explained).diagonal())
    return torch.diag_embed(torch.stack(variances, dim=1))


def whole_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """d f / d weights as one matrix [n, C, P]."""
    return torch.cat(list(jacobian(model, x).values()), dim=-1)


def weights_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that are uncertain: those not frozen."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def jacobian(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """d f / d weight as [n, C, p], one block a weight, by one backward pass an input and output."""
    weights = weights_of(model)
    outputs = model(x)
    n, classes = outputs.shape
    rows = [
        torch.autograd.grad(outputs[i, c], list(weights.values()), retain_graph=True)
        for i in range(n)
        for c in range(classes)
    ]
    columns = zip(*rows, strict=True)
    return {
        name: torch.stack([row.flatten() for row in column]).reshape(n, classes, -1)
        for name, column in zip(weights, columns, strict=True)
    }


def hessian_sqrt(outputs: Tensor) -> Tensor:
    """S [n, C, C] with S Sᵀ = diag(p) - p pᵀ, the softmax's curvature."""
    probs = outputs.detach().softmax(dim=-1)
    values, vectors = torch.linalg.eigh(torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :])
    return vectors * values.clamp(min=0).sqrt()[:, None, :]


def diagonal_blocks(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The diagonal of the exact generalised Gauss-Newton matrix, as dense matrices."""
    root = hessian_sqrt(model(inputs))
    blocks = jacobian(model, inputs)
    return {
        name: torch.diag(torch.einsum("ncp,ncr->nrp", block, root).square().sum(dim=(0, 1)))
        for name, block in blocks.items()
    }


def exact_bias_blocks(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The exact block of each bias, as dense matrices."""
    root = hessian_sqrt(model(inputs))
    blocks = {name: block for name, block in jacobian(model, inputs).items() if name.endswith("bias")}
    rows = {name: torch.einsum("ncp,ncr->nrp", block, root) for name, block in blocks.items()}
    return {name: torch.einsum("nrp,nrq->pq", row, row) for name, row in rows.items()}


def kron_blocks(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Kronecker factored curvature, sharing 'expand': a dense matrix a weight and a bias."""
    names = {module: name for name, module in model.named_modules()}
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, args, out: calls.append((module, args[0].detach(), out)))
        for module in names
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    outputs = model(inputs)
    for hook in hooks:
        hook.remove()
    root = hessian_sqrt(outputs)
    classes = outputs.shape[1]
    seeded = torch.einsum("nc,ncr->r", outputs, root)
    layer_outputs = [out for _, _, out in calls]
    seeds = [torch.autograd.grad(seeded[r], layer_outputs, retain_graph=True) for r in range(classes)]
    blocks: dict[str, Tensor] = {}
    for index, (module, layer_input, _) in enumerate(calls):
        a = positions_of_input(module, layer_input)
        g = torch.stack([positions_of_output(module, grads[index]) for grads in seeds], dim=1)
        factor_in = torch.einsum("nsi,nsj->ij", a, a) / (a.shape[0] * a.shape[1])
        factor_out = torch.einsum("nrso,nrsp->op", g, g)
        blocks[f"{names[module]}.weight"] = torch.kron(factor_out, factor_in)
        blocks[f"{names[module]}.bias"] = factor_out
    return blocks


def positions_of_input(module: nn.Module, x: Tensor) -> Tensor:
    """A layer's input as the vectors [n, positions, i] its weight matrix multiplies."""
    if isinstance(module, nn.Conv2d):
        if isinstance(module.padding, str):
            raise ValueError(f"padding {module.padding!r} has no number: give the padding as integers")
        unfolded = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        return unfolded.transpose(1, 2)
    return x.reshape(len(x), -1, x.shape[-1])


def positions_of_output(module: nn.Module, grad: Tensor) -> Tensor:
    """The gradient of a layer's output as [n, positions, o]."""
    if isinstance(module, nn.Conv2d):
        return grad.flatten(start_dim=2).transpose(1, 2)
    return grad.reshape(len(grad), -1, grad.shape[-1])
