"""Grid environments: batched, tensor-only environments built from maps."""
