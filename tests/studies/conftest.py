from __future__ import annotations

import pytest
from fake_study import FakeStudy


@pytest.fixture
def fake(tmp_path):
    return FakeStudy(tmp_path)
