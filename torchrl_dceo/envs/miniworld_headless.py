"""Imports MiniWorld without a display, or raises an error with the missing packages."""

from __future__ import annotations

import os

__all__ = ["APT_PACKAGES", "import_miniworld", "why_not"]

APT_PACKAGES = "libegl1 libgl1 libglu1-mesa"
"""The Debian packages that MiniWorld needs for rendering."""


def import_miniworld() -> None:
    """Imports MiniWorld for rendering into memory; its environments can be imported afterwards.

    Existing values of the environment variables ``PYGLET_HEADLESS`` and ``LP_NUM_THREADS`` are kept. They are read when
    pyglet and Mesa are loaded first, so call this before any other import of them in the process.

    Raises:
        ImportError: if something is missing; the message has the command that installs it.
    """
    os.environ.setdefault("PYGLET_HEADLESS", "1")
    # Mesa's software renderer would draw these small images in its own threads: waiting for them takes longer than
    # drawing, and they compete with the other environments.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    try:
        import pyglet
    except ImportError as error:
        raise _no_package(error) from None
    # pyglet checks for errors after each of the hundreds of calls that draw an image, unless this is set before its
    # OpenGL part is loaded.
    pyglet.options["debug_gl"] = False
    try:
        import pyglet.gl
    except ImportError as error:
        raise ImportError(
            f"MiniWorld draws with Mesa's libraries, which are not all here ({str(error).rstrip('.')}): "
            f"apt-get install -y {APT_PACKAGES}"
        ) from None
    except Exception as error:  # pyglet's own, when a library is there but gives it no context
        raise ImportError(
            f"MiniWorld found no way to draw without a display ({type(error).__name__}: {error}): "
            f"apt-get install -y {APT_PACKAGES}"
        ) from None
    try:
        import miniworld  # noqa: F401
    except ImportError as error:
        raise _no_package(error) from None


def why_not() -> str | None:
    """The reason why MiniWorld cannot be used here, or ``None`` if it can.

    Examples:
        >>> from torchrl_dceo.envs.miniworld_headless import why_not
        >>> why_not() is None or "install" in why_not()
        True
    """
    try:
        import_miniworld()
    except ImportError as error:
        return str(error)
    return None


def _no_package(error: ImportError) -> ImportError:
    return ImportError(
        f"the 3D environments need the package miniworld ({error}): pip install 'torchrl-dceo[miniworld]'"
    )
