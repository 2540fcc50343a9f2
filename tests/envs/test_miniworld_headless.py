"""What is said where the 3D environments cannot be drawn."""

from __future__ import annotations

import subprocess
import sys

import pytest
from needs_miniworld import needs_miniworld

pytestmark = needs_miniworld


@pytest.mark.parametrize(
    ("missing", "wanted"),
    [("pyglet", "torchrl-dceo[miniworld]"), ("miniworld", "torchrl-dceo[miniworld]")],
)
def test_a_missing_package_is_one_sentence(missing, wanted):
    code = f"""
import sys
sys.modules[{missing!r}] = None
from torchrl_dceo.envs import list_envs, make_env
assert "MyWayHomeSparse" in list_envs()
try:
    make_env("MyWayHomeSparse")
except ImportError as error:
    assert {wanted!r} in str(error) and "\\n" not in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_library_is_one_sentence_with_the_apt_line():
    code = """
import pyglet.lib
def fail(*names, **kwargs):
    raise ImportError(f'Library "{names[0]}" not found.')
pyglet.lib.load_library = pyglet.lib.loader.load_library = fail
from torchrl_dceo.envs import make_env
try:
    make_env("MyWayHomeSparse")
except ImportError as error:
    assert "apt-get install -y libegl1 libgl1 libglu1-mesa" in str(error), error
    assert "not found): apt" in str(error) and "\\n" not in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
