"""Loading MiniWorld's textures in a hundredth of its time."""

from __future__ import annotations

from torchrl_dceo.envs.miniworld_headless import import_miniworld

import_miniworld()

import pyglet  # noqa: E402
from miniworld.opengl import Texture  # noqa: E402
from miniworld.utils import get_file_path  # noqa: E402
from pyglet import gl  # noqa: E402

__all__ = ["preload"]


def preload(name: str) -> None:
    """Puts a texture into MiniWorld's cache, if it is not there yet.

    MiniWorld turns every pixel of it from RGB to RGBA in Python and then has the driver drop the A, half a second a
    texture.

    Args:
        name (str): such as ``"brick_wall"``.
    """
    path = get_file_path("textures", f"{name}_1", "png")
    if path in Texture.tex_cache:
        return
    image = pyglet.image.load(path)
    loaded = image.get_texture()
    gl.glBindTexture(loaded.target, loaded.id)
    # Again, as it is: pyglet pads to powers of two, which leaves seams where a texture repeats.
    channels = {"RGB": gl.GL_RGB, "RGBA": gl.GL_RGBA}
    data = image.get_image_data()
    kind = data.format if data.format in channels else "RGBA"
    size = (image.width, image.height)
    gl.glPixelStorei(gl.GL_UNPACK_ALIGNMENT, 1)
    gl.glTexImage2D(
        loaded.target,
        0,
        gl.GL_RGB,
        *size,
        0,
        channels[kind],
        gl.GL_UNSIGNED_BYTE,
        data.get_data(kind, image.width * len(kind)),
    )
    gl.glGenerateMipmap(loaded.target)
    gl.glTexParameteri(loaded.target, gl.GL_TEXTURE_MAG_FILTER, gl.GL_LINEAR)
    gl.glTexParameteri(loaded.target, gl.GL_TEXTURE_MIN_FILTER, gl.GL_LINEAR_MIPMAP_LINEAR)
    gl.glBindTexture(loaded.target, 0)
    Texture.tex_cache[path] = Texture(loaded, name)
