"""States on disk without pickle: raw tensor bytes, and one JSON file that describes them."""

from __future__ import annotations

import json
import math
import os
import secrets
import zlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "SavedSegment",
    "Segment",
    "copied",
    "load_state",
    "save_state",
    "sync_directory",
    "write_file",
]

_INDEX = "state.json"
_FORMAT = "torchrl_dceo state 1"
_CHUNK = 1 << 24  # bytes written at a time
_SMALL = 1 << 20  # bytes of a tensor that gets a file of its own
_SAMPLE = 1 << 18  # bytes by which it is judged whether a tensor is worth compressing
_MOST_PACKED = 1100  # zlib makes at most about 1030 bytes of one
_LARGEST_INDEX = 1 << 28  # bytes
_CHECKED = 1 << 26  # bytes of segments that are read again before they are taken over


class Segment(dict[str, Any]):
    """A dictionary of tensors that is saved in a file of its own, and a mark that identifies its content.

    Two segments with equal marks have the same bytes, so that the file of one can be reused for the other.

    Args:
        items (Mapping): the tensors by name.
        mark (Hashable): identifies the content.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.data.persistence import Segment, load_state, save_state
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state = {"rows": [Segment({"x": torch.arange(2)}, mark=(0, 2))]}
        ...     segments = save_state(f"{folder}/1", state)
        ...     again = save_state(f"{folder}/2", state, reuse=segments)  # writes no row
        ...     load_state(f"{folder}/2"), again[0, 2].path.stat().st_nlink
        ({'rows': [{'x': tensor([0, 1])}]}, 2)
    """

    def __init__(self, items: Mapping[str, Any], mark: Hashable) -> None:
        super().__init__(items)
        self.mark = mark


class SavedSegment(NamedTuple):
    """A saved segment.

    Attributes:
        path: its file.
        facts: the file's size and checksum.
        node: its entry in the index.
    """

    path: Path
    facts: dict[str, int]
    node: dict[str, Any]


def copied(value: Any) -> Any:
    """Nested dictionaries and lists with copies of their tensors.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.data.persistence import copied
        >>> x = torch.zeros(2)
        >>> copied({"a": [x, 1]})["a"][0] is x
        False
    """
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def _bytes(tensor: Tensor) -> np.ndarray:
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:
        # A single element counts as contiguous whatever its stride, but has no view as bytes.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy()


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


def _kind(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def _shrinks(tensor: Tensor) -> bool:
    """Whether the first bytes of the tensor compress to less than half their size."""
    sample = next(_chunks(tensor))[:_SAMPLE]
    return len(zlib.compress(sample, 1)) < len(sample) / 2


class _File:
    """A file that is being written, its size and its CRC-32."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.size = self.checksum = 0

    def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.size, self.checksum = self.size + len(data), zlib.crc32(data, self.checksum)

    def write_tensor(self, tensor: Tensor, packed: bool) -> None:
        packer = zlib.compressobj(1) if packed else None
        for chunk in _chunks(tensor):
            self.write(chunk if packer is None else packer.compress(chunk))
        if packer is not None:
            self.write(packer.flush())

    def close(self) -> dict[str, int]:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return {"bytes": self.size, "crc32": self.checksum}


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes or replaces a file atomically and durably (also across a power failure).

    Args:
        path (path-like): the file; its directory must exist.
        data (bytes): its content.

    Examples:
        >>> import pathlib, tempfile
        >>> from torchrl_dceo.data.persistence import write_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_file(f"{folder}/a.txt", b"new")
        ...     [path.name for path in pathlib.Path(folder).iterdir()]
        ['a.txt']
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames within a directory durable (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_state(
    path: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    compress: bool = False,
    reuse: Mapping[Hashable, SavedSegment] | None = None,
) -> dict[Hashable, SavedSegment]:
    """Saves nested dictionaries of tensors and plain values into a directory, atomically.

    Each large tensor has a file of its own; small ones share one. The files are written first, then ``state.json`` is
    replaced atomically, then old files are removed. If the process is killed at any time, the directory contains one
    complete state, old or new. ``state.json`` has size and checksum of every file, and its own checksum.

    Args:
        path (path-like): the directory; created if missing.
        state (dict): nested dictionaries with string keys, of tensors, numbers, strings, booleans,
            ``None`` and lists of those.

    Keyword Args:
        compress (bool, optional): compress large tensors that compress well (images of grid environments: to a
            thirtieth) with zlib's fastest level, which is as fast as a disk. Default: ``False``.
        reuse (Mapping, optional): segments of another state by their marks. Segments of this state with the same mark
            reuse their files, by a hard link or, if the file system has none, by a copy. Damage to a linked file
            affects both states, so the other state should be one that will be removed. Files are verified before
            reuse: up to 64 MB are read again, of larger ones a random part. Default: none.

    Returns:
        The segments of the state by their marks, for the ``reuse`` of another one.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.data.persistence import load_state, save_state
        >>> with tempfile.TemporaryDirectory() as path:
        ...     _ = save_state(path, {"a": torch.arange(3), "b": {"c": 1.5}})
        ...     load_state(path)
        {'a': tensor([0, 1, 2]), 'b': {'c': 1.5}}
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(8)
    small = f"small-{token}.bin"
    files: dict[str, dict[str, int]] = {}
    shared = _File(directory / small)
    segments: dict[Hashable, SavedSegment] = {}
    held = {} if reuse is None else reuse
    held_bytes = sum(segment.facts["bytes"] for segment in held.values())

    def encode_tensor(value: Tensor) -> dict[str, Any]:
        node = _kind(value)
        if value.nbytes < _SMALL:
            # Aligned, so that the bytes can be viewed in the tensor's own type.
            shared.write(bytes(-shared.size % 16))
            offset = shared.size
            shared.write_tensor(value, False)
            return {"file": small, "offset": offset, "zlib": False, **node}
        name = f"{len(files):04d}-{token}.bin"
        packed = compress and _shrinks(value)
        file = _File(directory / name)
        file.write_tensor(value, packed)
        files[name] = file.close()
        return {"file": name, "offset": 0, "zlib": packed, **node}

    def encode_segment(value: Segment) -> dict[str, Any]:
        old = held.get(value.mark)
        read = secrets.randbelow(max(1, held_bytes)) < _CHECKED
        if old is not None and _serves(old, directory, read):
            saved = old._replace(path=directory / old.path.name)
        else:
            saved = _write_segment(directory / f"{len(files):04d}-{token}.bin", value, compress)
        files[saved.path.name] = saved.facts
        segments[value.mark] = saved
        return saved.node

    def encode(value: Any) -> Any:
        if isinstance(value, Tensor):
            return encode_tensor(value)
        if isinstance(value, Segment):
            return encode_segment(value)
        if isinstance(value, dict):
            return {"items": [[str(key), encode(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [encode(item) for item in value]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}  # JSON has no name for these
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise TypeError(f"Cannot save a value of type {type(value).__name__} without pickle.")

    try:
        tree = encode(state)
    finally:
        files[small] = shared.close()
    payload = json.dumps({"files": files, "tree": tree}, allow_nan=False).encode()
    # The files are renamed before the index.
    sync_directory(directory)
    write_file(directory / _INDEX, _framed(payload))
    # A new directory is an entry of its parent.
    sync_directory(directory.parent)
    for old in [*directory.glob("*.bin"), *directory.glob(f"{_INDEX}.*")]:
        if old.name not in files:
            old.unlink()
    return segments


def _write_segment(path: Path, segment: Segment, compress: bool) -> SavedSegment:
    file, items = _File(path), []
    try:
        for key, value in segment.items():
            file.write(bytes(-file.size % 16))
            offset, packed = file.size, compress and value.nbytes > 0 and _shrinks(value)
            file.write_tensor(value, packed)
            place = {"file": path.name, "offset": offset, "zlib": packed}
            if packed:
                place["packed"] = file.size - offset
            items.append([key, {**place, **_kind(value)}])
    finally:
        facts = file.close()
    return SavedSegment(path, facts, {"items": items})


def _serves(segment: SavedSegment, directory: Path, read: bool) -> bool:
    """Links a segment's file into another directory, if it is unchanged."""
    target = directory / segment.path.name
    try:
        if segment.path.stat().st_size != segment.facts["bytes"]:
            return False
        if read:
            _read(segment.path, segment.facts)
        if target != segment.path:
            _link(segment, target)
    except (OSError, ValueError):
        return False
    return True


def _link(segment: SavedSegment, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(segment.path, target)
    except OSError:  # FAT and some network file systems have no links
        copy = _File(target)
        try:
            copy.write(_read(segment.path, segment.facts).data)
        finally:
            copy.close()


def _framed(payload: bytes) -> bytes:
    """The index as a JSON document that contains the checksum of its own bytes."""
    head = json.dumps({"format": _FORMAT, "crc32": f"{zlib.crc32(payload):08x}"})
    return b'%s, "state": %s}\n' % (head[:-1].encode(), payload)


def _read_index(path: Path) -> Any:
    if path.stat().st_size > _LARGEST_INDEX:
        raise ValueError(f"{path} is not a state saved by torchrl_dceo: it is too large.")
    data = path.read_bytes()
    start, end = len(_framed(b"")) - len(b"}\n"), -len(b"}\n")
    payload = data[start:end]
    # Compared as bytes: changes that keep the meaning of the JSON are damage too.
    if _framed(payload) != data:
        if _FORMAT.encode() not in data[:start]:
            raise ValueError(f"{path} is not a state saved by torchrl_dceo, or it is damaged.")
        raise ValueError(f"The saved state is damaged: the checksum of {path} differs.")
    return json.loads(payload)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Loads what :func:`save_state` saved; checks size and checksum of every file.

    Large tensors that were not compressed are memory-mapped from their files. The mapping is private: changing the
    tensors does not change the files. An index that refers to files outside the directory, to offsets outside a file
    or to impossible sizes raises an error.

    Args:
        path (path-like): the directory.
    """
    directory = Path(path)
    if not (directory / _INDEX).is_file():
        raise FileNotFoundError(f"No saved state in {directory}: it has no file {_INDEX}.")
    try:
        return _load(directory)
    except (KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        # The checksum is right, but save_state did not write it.
        raise ValueError(
            f"The saved state is damaged: {directory / _INDEX} cannot be read "
            f"({type(error).__name__}: {error})."
        ) from None


def _load(directory: Path) -> dict[str, Any]:
    index = _read_index(directory / _INDEX)
    for name in index["files"]:
        # Also excludes links to other directories.
        if name != Path(name).name or (directory / name).is_symlink():
            raise ValueError(
                f"The saved state is damaged: {directory / _INDEX} names {name!r}, which is not a file in "
                "its directory."
            )
    files = {name: _read(directory / name, facts) for name, facts in index["files"].items()}

    def decode(node: Any) -> Any:
        if "file" in node:
            return _tensor(files[node["file"]], node)
        if "items" in node:
            return {key: decode(item) for key, item in node["items"]}
        if "list" in node:
            return [decode(item) for item in node["list"]]
        return float(node["float"]) if "float" in node else node["value"]

    return decode(index["tree"])


def _read(path: Path, facts: dict[str, int]) -> np.ndarray:
    """The bytes of a file, after checking size and checksum."""
    size = facts["bytes"]
    if not path.is_file() or path.stat().st_size != size:
        raise ValueError(f"The saved state is damaged: {path} does not have its {size} bytes.")
    if not size:
        return np.empty(0, dtype=np.uint8)
    data = np.memmap(path, dtype=np.uint8, mode="c")
    checksum = 0
    for start in range(0, size, _CHUNK):
        checksum = zlib.crc32(data[start : start + _CHUNK].data, checksum)
    if checksum != facts["crc32"]:
        raise ValueError(f"The saved state is damaged: the checksum of {path} differs.")
    return data


def _tensor(data: np.ndarray, node: dict[str, Any]) -> Tensor:
    dtype, dimensions, offset = getattr(torch, node["dtype"]), node["shape"], node["offset"]
    length = node.get("packed", len(data) - offset if type(offset) is int else offset)
    numbers = [*dimensions, offset, length]
    if not isinstance(dtype, torch.dtype) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"The saved state is damaged: it contains no tensor of the kind {node}.")
    size = math.prod(dimensions) * dtype.itemsize
    held = length * _MOST_PACKED if node["zlib"] else length
    if size > held or offset + length > len(data):
        raise ValueError(
            f"The saved state is damaged: a tensor of {size} bytes is not in a file of {len(data)}."
        )
    shape = torch.Size(dimensions)
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    data = data[offset : offset + length]
    data = _unpacked(data, size) if node["zlib"] else data[:size]
    if size < _SMALL:
        data = np.array(data)  # free of its file
    return torch.from_numpy(data).view(dtype).view(shape)


def _unpacked(packed: np.ndarray, size: int) -> np.ndarray:
    """Decompresses in place, without a second copy, and never more than the expected number of bytes."""
    data, filled, unpacker = np.empty(size, dtype=np.uint8), 0, zlib.decompressobj()
    for start in range(0, len(packed), _SAMPLE):
        pending: Any = packed[start : start + _SAMPLE].data
        while True:
            # Asking for one extra byte detects data that is too long.
            most = min(_CHUNK, size - filled + 1)
            try:
                piece = np.frombuffer(unpacker.decompress(pending, most), dtype=np.uint8)
            except zlib.error as error:
                raise ValueError(f"The saved state is damaged: {error}.") from None
            if filled + len(piece) > size:
                raise ValueError(
                    f"The saved state is damaged: it unpacks to more than {size} bytes."
                )
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
            pending = unpacker.unconsumed_tail
            if not len(pending) and len(piece) < most:
                break
    if filled != size:
        raise ValueError(f"The saved state is damaged: it unpacks to {filled} of {size} bytes.")
    return data
