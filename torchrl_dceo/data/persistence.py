"""States on disk without pickle: raw tensor bytes, and one JSON file that says what they are."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["load_state", "save_state"]

_INDEX = "state.json"
_CHUNK = 1 << 24  # bytes written at a time


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _write(path: Path, tensor: Tensor) -> int:
    """Writes the bytes of a tensor, piece by piece along its first dimensions; returns their CRC-32."""
    checksum = 0
    with path.open("wb") as file:
        stack = [tensor.detach()]
        while stack:
            piece = stack.pop()
            if not piece.is_contiguous() and piece.ndim > 1:
                # A part of each ring: never copied as a whole.
                stack.extend(reversed(piece.unbind(0)))
                continue
            data = _bytes(piece.contiguous()).data
            for start in range(0, len(data), _CHUNK):
                chunk = data[start : start + _CHUNK]
                file.write(chunk)
                checksum = zlib.crc32(chunk, checksum)
        file.flush()
        os.fsync(file.fileno())
    return checksum


def save_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Saves nested dictionaries of tensors and plain values into a directory, atomically.

    Every tensor goes to a new file; ``state.json`` is then replaced in one step and the old files
    are removed. Whenever the process dies, the directory holds one whole state, old or new.

    Args:
        path (path-like): the directory; made if need be.
        state (dict): nested dictionaries with string keys, of tensors, numbers, strings, booleans,
            ``None`` and lists of those.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.data.persistence import load_state, save_state
        >>> with tempfile.TemporaryDirectory() as path:
        ...     save_state(path, {"a": torch.arange(3), "b": {"c": 1.5}})
        ...     load_state(path)
        {'a': tensor([0, 1, 2]), 'b': {'c': 1.5}}
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    files: set[str] = set()

    def encode(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = f"{len(files):04d}-{token}.bin"
            files.add(name)
            checksum = _write(directory / name, value)
            dtype = str(value.dtype).removeprefix("torch.")
            return {"file": name, "dtype": dtype, "shape": list(value.shape), "crc32": checksum}
        if isinstance(value, dict):
            return {"items": [[str(key), encode(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [encode(item) for item in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise TypeError(f"Cannot save a value of type {type(value).__name__} without pickle.")

    index = encode(state)
    temporary = directory / f"{_INDEX}.{token}"
    with temporary.open("w") as file:
        json.dump(index, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _INDEX)
    for old in [*directory.glob("*.bin"), *directory.glob(f"{_INDEX}.*")]:
        if old.name not in files:
            old.unlink()


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Loads what :func:`save_state` saved; checks size and checksum of every file.

    Large tensors are mapped from their files, not read into memory, and the mapping is private:
    changing them does not change the files.

    Args:
        path (path-like): the directory.
    """
    directory = Path(path)
    if not (directory / _INDEX).is_file():
        raise FileNotFoundError(f"No saved state in {directory}: it has no file {_INDEX}.")

    def decode(node: Any) -> Any:
        if "file" in node:
            return _read(directory / node["file"], node)
        if "items" in node:
            return {key: decode(item) for key, item in node["items"]}
        if "list" in node:
            return [decode(item) for item in node["list"]]
        return node["value"]

    return decode(json.loads((directory / _INDEX).read_text()))


def _read(path: Path, node: dict[str, Any]) -> Tensor:
    dtype = getattr(torch, node["dtype"])
    shape = torch.Size(node["shape"])
    size = shape.numel() * dtype.itemsize
    if not path.is_file() or path.stat().st_size != size:
        raise ValueError(f"The saved state is damaged: {path} does not have its {size} bytes.")
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    data = np.memmap(path, dtype=np.uint8, mode="c")
    checksum = 0
    for start in range(0, size, _CHUNK):
        checksum = zlib.crc32(data[start : start + _CHUNK].data, checksum)
    if checksum != node["crc32"]:
        raise ValueError(f"The saved state is damaged: the checksum of {path} differs.")
    return torch.from_numpy(data).view(dtype).view(shape)
