"""Grid environments: a map becomes a batched, tensor-only environment."""
