"""Rendering of the 3D environments: textures, and images without a display."""

from __future__ import annotations

import math
from ctypes import POINTER, byref
from functools import lru_cache
from typing import Any

import numpy as np
import pyglet
from miniworld.opengl import Texture
from miniworld.utils import get_file_path
from pyglet import gl

__all__ = [
    "View",
    "camera_matrix",
    "perspective_matrix",
    "preload",
    "shared_window",
]


_Matrix = gl.GLfloat * 16


def preload(name: str) -> None:
    """Loads a texture into MiniWorld's cache, if it is not there yet.

    MiniWorld converts every pixel from RGB to RGBA in Python, although the driver drops the A: half a second per
    texture.

    Args:
        name (str): the name, e.g. ``"brick_wall"``.
    """
    path = get_file_path("textures", f"{name}_1", "png")
    if path in Texture.tex_cache:
        return
    image = pyglet.image.load(path)
    loaded = image.get_texture()
    gl.glBindTexture(loaded.target, loaded.id)
    # Uploaded again without padding: pyglet pads to powers of two, which leaves seams where a texture repeats.
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


@lru_cache(maxsize=1)
def shared_window() -> Any:
    """The invisible window with the OpenGL context shared by all environments of this process.

    MiniWorld creates one per environment, and has to switch between them for each image.
    """
    window = pyglet.window.Window(width=1, height=1, visible=False)
    gl.glEnable(gl.GL_DEPTH_TEST)
    gl.glEnable(gl.GL_CULL_FACE)
    return window


class View:
    """A frame buffer whose image is read as an array.

    MiniWorld's has four floats per sample instead of four bytes, and also copies the depth of every image. With a
    software renderer that is a third of the time of a small image.

    Args:
        width (int): width of the image.
        height (int): height of the image.
        samples (int): samples per pixel, limited by the driver (Mesa's software renderer: 4). 1 is
            faster, without anti-aliasing.
    """

    def __init__(self, width: int, height: int, samples: int = 4) -> None:
        self.width, self.height = width, height
        shared_window().switch_to()
        most = gl.GLint()
        gl.glGetIntegerv(gl.GL_MAX_SAMPLES, byref(most))
        self.samples = max(1, min(samples, most.value))
        self._drawn = self._buffer(self.samples)
        # With one sample the image is read directly from the buffer into which it was drawn.
        self._final = self._drawn if self.samples == 1 else self._buffer(1)
        self._pixels = np.zeros((height, width, 3), np.uint8)
        self._pointer = self._pixels.ctypes.data_as(POINTER(gl.GLubyte))

    def _buffer(self, samples: int) -> Any:
        buffer = gl.GLuint(0)
        gl.glGenFramebuffers(1, byref(buffer))
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, buffer)
        for attachment, kind in (
            (gl.GL_COLOR_ATTACHMENT0, gl.GL_RGBA8),
            (gl.GL_DEPTH_ATTACHMENT, gl.GL_DEPTH_COMPONENT16),
        ):
            storage = gl.GLuint(0)
            gl.glGenRenderbuffers(1, byref(storage))
            gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, storage)
            gl.glRenderbufferStorageMultisample(
                gl.GL_RENDERBUFFER, 0 if samples == 1 else samples, kind, self.width, self.height
            )
            gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, attachment, gl.GL_RENDERBUFFER, storage)
        status = gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER)
        if status != gl.GL_FRAMEBUFFER_COMPLETE:
            raise RuntimeError(
                f"the OpenGL driver rejects a frame buffer of {self.width} x {self.height} pixels with {samples} "
                f"samples (status {status}): use fewer samples"
            )
        return buffer

    def bind(self) -> None:
        """Makes this the target of the next drawing operations."""
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._drawn)
        gl.glViewport(0, 0, self.width, self.height)

    def resolve(self) -> np.ndarray:
        """The image that was drawn: a new array, ``uint8 [H, W, 3]``, top row first."""
        if self._final is not self._drawn:
            gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._drawn)
            gl.glBindFramebuffer(gl.GL_DRAW_FRAMEBUFFER, self._final)
            area = (0, 0, self.width, self.height)
            gl.glBlitFramebuffer(*area, *area, gl.GL_COLOR_BUFFER_BIT, gl.GL_NEAREST)
            gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._final)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        gl.glReadPixels(
            0, 0, self.width, self.height, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, self._pointer
        )
        # OpenGL's first row is the lowest.
        return self._pixels[::-1].copy()


@lru_cache(maxsize=16)
def perspective_matrix(fov_y: float, aspect: float, near: float = 0.04, far: float = 100.0) -> Any:
    """The projection matrix of a camera with a vertical field of view in degrees, in OpenGL's column order."""
    f = 1 / math.tan(math.radians(fov_y) / 2)
    depth = near - far
    rows = (
        (f / aspect, 0, 0, 0),
        (0, f, 0, 0),
        (0, 0, (far + near) / depth, 2 * far * near / depth),
        (0, 0, -1, 0),
    )
    return _Matrix(*(rows[i][j] for j in range(4) for i in range(4)))


def camera_matrix(x: float, y: float, z: float, heading: float) -> Any:
    """The view matrix from a point towards (cos, 0, −sin) of the heading, in OpenGL's column order."""
    c, s = math.cos(heading), math.sin(heading)
    # Rows: right (s, 0, c), up (0, 1, 0), backward (−c, 0, s); last column: the point itself moved to the origin.
    shift = (-(s * x + c * z), -y, c * x - s * z)
    return _Matrix(s, 0, -c, 0, 0, 1, 0, 0, c, 0, s, 0, *shift, 1)
