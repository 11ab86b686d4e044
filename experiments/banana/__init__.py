"""Two classes in the plane: where each predictive is sure, and of what kind its doubt is."""
