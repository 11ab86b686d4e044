"""What is known of the work that moved a posterior's mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Refinement:
    """How a posterior was refined in the linear model.

    `objective` `[steps]` is what was maximised, after each step: the ELBO, or the log joint density less its constants
    (of minibatches, their estimates). `gradient_norm` is the norm of its gradient at the mean, where that is known.
    """

    method: str
    steps: int
    objective: Tensor
    gradient_norm: float | None
    converged: bool

    def __repr__(self) -> str:
        norm = "" if self.gradient_norm is None else f", gradient norm {self.gradient_norm:.2g}"
        end = "converged" if self.converged else "not converged"
        return f"{self.method}: {self.steps} steps, {end}{norm}"
