from __future__ import annotations

import pytest
from training_runs import Runs


@pytest.fixture(scope="session")
def runs():
    server = Runs()
    yield server
    server.close()
