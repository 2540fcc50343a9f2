from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible():
    """Every test starts from the same seed and uses one thread, whatever ran before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
