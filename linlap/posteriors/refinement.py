"""What is known of the work that moved a posterior's mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Refinement:
    """How a posterior was refined in the linear model.

    `objective` `[steps]` is what was maximised, after each step: the ELBO, or the log joint density less its constants
    (of minibatches, their estimates). `gradient_norm` is the norm of its gradient at the mean, where that is known.
    `converged` is None where a number of steps was all that was asked for.
    """

    method: str
    steps: int
    objective: Tensor
    gradient_norm: float | None
    converged: bool | None

    def __repr__(self) -> str:
        norm = "" if self.gradient_norm is None else f", gradient norm {self.gradient_norm:.2g}"
        end = {True: ", converged", False: ", not converged", None: ""}[self.converged]
        return f"{self.method}: {self.steps} steps{end}{norm}"
