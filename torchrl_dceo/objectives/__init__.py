"""Loss modules: the Laplacian representation and the options learned from it."""
