"""The oracle for Gaussian processes: as the paper writes them, with inverses, one output or all of them at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def stacked(J: Tensor) -> Tensor:
    """`[n, C, P]` as rows `[n·C, P]`."""
    return J.reshape(-1, J.shape[-1])


def independent(J: Tensor, lam: Tensor, J_test: Tensor, prior: Tensor) -> Tensor:
    """Var f(x*) `[n*, C]`: k** − k*ᵀ (K + Λ⁻¹)⁻¹ k* for each output by itself, Λ its own diagonal entries."""
    found = []
    for c in range(J.shape[1]):
        K = (J[:, c] / prior) @ J[:, c].T
        k = (J[:, c] / prior) @ J_test[:, c].T
        own = (J_test[:, c] / prior * J_test[:, c]).sum(-1)
        gain = torch.linalg.inv(K + torch.diag(1 / lam[:, c, c]))
        found.append(own - torch.einsum("mn,mo,on->n", k, gain, k))
    return torch.stack(found, dim=-1)


def independent_evidence(J: Tensor, lam: Tensor, log_likelihood: Tensor, theta: Tensor, prior: Tensor) -> Tensor:
    """Laplace's log p(D), with log det (I + K Λ) of each output by itself."""
    total = log_likelihood - 0.5 * (prior * theta**2).sum()
    for c in range(J.shape[1]):
        K = (J[:, c] / prior) @ J[:, c].T
        B = torch.eye(len(J), dtype=J.dtype) + K * lam[:, c, c]
        total = total - 0.5 * torch.linalg.slogdet(B).logabsdet
    return total


def sparse(J: Tensor, lam: Tensor, J_z: Tensor, J_test: Tensor, prior: Tensor) -> Tensor:
    """Cov f(x*) over all test rows: k** − k*z (Kzz⁻¹ − (Kzz + Bz)⁻¹) kz*, Bz = Σ kzn Λn knz."""
    Z, T = stacked(J_z), stacked(J_test)
    Kzz, Kzt = (Z / prior) @ Z.T, (Z / prior) @ T.T
    B = torch.zeros_like(Kzz)
    for J_n, lam_n in zip(J, lam, strict=True):
        k = (Z / prior) @ J_n.T
        B += k @ lam_n @ k.T
    inner = torch.linalg.inv(Kzz) - torch.linalg.inv(Kzz + B)
    return (T / prior) @ T.T - Kzt.T @ inner @ Kzt


def sparse_independent(J: Tensor, lam: Tensor, J_z: Tensor, J_test: Tensor, prior: Tensor) -> Tensor:
    """Variances `[n*, C]`, each output by itself."""
    each = []
    for c in range(J.shape[1]):
        rows = [part[:, c : c + 1] for part in (J, J_z, J_test)]
        cov = sparse(rows[0], lam[:, c : c + 1, c : c + 1], rows[1], rows[2], prior)
        each.append(cov.diagonal())
    return torch.stack(each, dim=-1)
