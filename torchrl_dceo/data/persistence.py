"""States on disk without pickle: raw tensor bytes, and one JSON file that says what they are."""

from __future__ import annotations

import json
import math
import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["load_state", "save_state"]

_INDEX = "state.json"
_FORMAT = "torchrl_dceo state 1"
_CHUNK = 1 << 24  # bytes written at a time
_SAMPLE = 1 << 18  # bytes by which it is judged whether a tensor is worth compressing


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, piece by piece along its first dimensions."""
    stack = [tensor.detach().cpu()]
    while stack:
        piece = stack.pop()
        if not piece.is_contiguous() and piece.ndim > 1:
            # A part of each ring: never copied as a whole.
            stack.extend(reversed(piece.unbind(0)))
            continue
        data = _bytes(piece.contiguous()).data
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]


def _shrinks(tensor: Tensor) -> bool:
    """Whether the tensor is large and its first bytes shrink to less than half."""
    if tensor.nbytes < 4 * _SAMPLE:
        return False
    sample = next(_chunks(tensor))[:_SAMPLE]
    return len(zlib.compress(sample, 1)) < len(sample) / 2


def _write(path: Path, tensor: Tensor, compress: bool) -> dict[str, int]:
    """Writes the bytes of a tensor; returns the size and the CRC-32 of the file."""
    checksum = size = 0
    packer = zlib.compressobj(1) if compress else None

    def put(data: bytes | memoryview) -> None:
        nonlocal checksum, size
        file.write(data)
        checksum, size = zlib.crc32(data, checksum), size + len(data)

    with path.open("wb") as file:
        for chunk in _chunks(tensor):
            put(chunk if packer is None else packer.compress(chunk))
        if packer is not None:
            put(packer.flush())
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": checksum}


def _sync_directory(path: Path) -> None:
    """Makes renames within a directory survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_state(
    path: str | os.PathLike[str], state: dict[str, Any], *, compress: bool = False
) -> None:
    """Saves nested dictionaries of tensors and plain values into a directory, atomically.

    Every tensor goes to a new file; ``state.json`` is then replaced in one step and the old files
    are removed. Whenever the process dies, the directory holds one whole state, old or new. Size and
    checksum of every file are in ``state.json``, and so is its own.

    Args:
        path (path-like): the directory; made if need be.
        state (dict): nested dictionaries with string keys, of tensors, numbers, strings, booleans,
            ``None`` and lists of those.

    Keyword Args:
        compress (bool, optional): write large tensors that shrink well (pictures of grid worlds: to a
            thirtieth) with zlib's fastest level, which takes no longer than a disk. Default: ``False``.

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
            packed = compress and _shrinks(value)
            written = _write(directory / name, value, packed)
            dtype = str(value.dtype).removeprefix("torch.")
            shape = list(value.shape)
            return {"file": name, "dtype": dtype, "shape": shape, "zlib": packed, **written}
        if isinstance(value, dict):
            return {"items": [[str(key), encode(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [encode(item) for item in value]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}  # JSON has no name for these
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise TypeError(f"Cannot save a value of type {type(value).__name__} without pickle.")

    payload = json.dumps(encode(state), allow_nan=False).encode()
    temporary = directory / f"{_INDEX}.{token}"
    with temporary.open("wb") as file:
        file.write(_framed(payload))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / _INDEX)
    _sync_directory(directory)
    for old in [*directory.glob("*.bin"), *directory.glob(f"{_INDEX}.*")]:
        if old.name not in files:
            old.unlink()


def _framed(payload: bytes) -> bytes:
    """The index as a JSON document that holds the checksum of its own bytes."""
    head = json.dumps({"format": _FORMAT, "crc32": f"{zlib.crc32(payload):08x}"})
    return b'%s, "state": %s}\n' % (head[:-1].encode(), payload)


def _read_index(path: Path) -> Any:
    data = path.read_bytes()
    start, end = len(_framed(b"")) - len(b"}\n"), -len(b"}\n")
    payload = data[start:end]
    # Byte for byte: not only what changes the meaning of the JSON is damage.
    if _framed(payload) != data:
        if _FORMAT.encode() not in data[:start]:
            raise ValueError(f"{path} is not a state saved by torchrl_dceo, or it is damaged.")
        raise ValueError(f"The saved state is damaged: the checksum of {path} differs.")
    return json.loads(payload)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Loads what :func:`save_state` saved; checks size and checksum of every file.

    Large tensors that were not compressed are mapped from their files, not read into memory, and the
    mapping is private: changing them does not change the files.

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
        return float(node["float"]) if "float" in node else node["value"]

    return decode(_read_index(directory / _INDEX))


def _read(path: Path, node: dict[str, Any]) -> Tensor:
    dtype, shape, size = getattr(torch, node["dtype"]), torch.Size(node["shape"]), node["bytes"]
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
    if node["zlib"]:
        data = _unpacked(data, shape.numel() * dtype.itemsize)
    elif size < _CHUNK:
        data = np.array(data)
    return torch.from_numpy(data).view(dtype).view(shape)


def _unpacked(packed: np.ndarray, size: int) -> np.ndarray:
    """The bytes before compression, without a second copy of all of them."""
    data, filled, unpacker = np.empty(size, dtype=np.uint8), 0, zlib.decompressobj()
    for start in range(0, len(packed), _SAMPLE):
        piece = np.frombuffer(unpacker.decompress(packed[start : start + _SAMPLE]), dtype=np.uint8)
        data[filled : filled + len(piece)] = piece
        filled += len(piece)
    return data
