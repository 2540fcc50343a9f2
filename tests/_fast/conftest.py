from __future__ import annotations

import pytest

from torchrl_dceo._fast import fast_path


@pytest.fixture(autouse=True)
def _path():
    """The optimisations themselves are tested here, also where the environment switches them off."""
    with fast_path(True):
        yield
