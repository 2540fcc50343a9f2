from __future__ import annotations

import pytest
import torch

from torchrl_dceo._fast import fast_path, is_fast

# Whose tests run twice, with the private optimisations and on TorchRL's own paths, unless marked `fast_only`: because
# they are about the optimisations, or take long and add nothing.
BOTH_PATHS = {"agents", "data", "objectives"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.path.parent.name in BOTH_PATHS:
        once = metafunc.definition.get_closest_marker("fast_only") is not None
        paths = {"fast": True} if once else {"fast": True, "torchrl": False}
        metafunc.parametrize("_path", list(paths.values()), ids=list(paths), indirect=True)


@pytest.fixture(autouse=True)
def _path(request):
    """Switches the optimisations for the length of a test."""
    with fast_path(getattr(request, "param", is_fast())):
        yield


@pytest.fixture(autouse=True)
def _reproducible(_path):
    """Every test starts from the same seed and uses one thread, whatever ran before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
