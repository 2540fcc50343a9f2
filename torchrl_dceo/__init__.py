"""Deep Covering Eigenoptions (DCEO): Laplacian-based options as TorchRL components."""

__version__ = "0.1.0"
