"""The mark of tests that need the extra ``miniworld`` and Mesa's libraries."""

import pytest

from torchrl_dceo.envs.miniworld_headless import why_not

needs_miniworld = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
