"""Eight sets of the UCI repository, two networks: the posteriors and predictives of the paper, and further ones."""
