"""Which prior is a safe default where none is given: how the GLM predictive fares against the network alone."""
