"""What the oracle says of the networks of the cases, worked out once a session."""

from __future__ import annotations

from functools import cache

from tests import reference
from tests.cases import BY_NAME, LIKELIHOODS_BY_NAME, likelihood_for
from tests.networks.truth import Truth

__all__ = ["Truth", "truth_of"]


@cache
def truth_of(name: str, likelihood: str | None = None) -> Truth:
    """For a network by its name, with the likelihood that the cases give it or another one."""
    case = BY_NAME[name]
    law = likelihood_for(case) if likelihood is None else LIKELIHOODS_BY_NAME[likelihood]
    model, x = case.build(), case.inputs()
    names = reference.names_of(model)
    f, J = reference.jacobian(model, x, names)
    lam = reference.lam(law.oracle, f, **law.options(case.outputs))
    return Truth(case, x, law.targets(f), names, f, J, lam, law)
