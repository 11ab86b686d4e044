"""A network of two weights: why the BNN predictive underfits, and the GLM predictive does not."""
