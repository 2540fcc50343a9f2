"""The data for a run's figures: one file of arrays, and the log."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_dceo.analysis.spectra.options import (
    find_table_env,
    followed_eigenfunctions,
    state_values,
)
from torchrl_dceo.envs import GridWorldEnv, TableEnv
from torchrl_dceo.modules import EigenReward

__all__ = ["ANALYSIS_FILE", "RunAnalysis", "check_npz", "load_analysis", "save_analysis"]

ANALYSIS_FILE = "analysis.npz"
"""The file's name in the run directory."""
_ARRAYS = ("counts", "representation", "option_values", "followed")


@dataclass(frozen=True)
class RunAnalysis:
    """The result of :func:`load_analysis`; ``None`` for parts that the run did not have.

    Attributes:
        env (dict): the environment: its ``name``; for a grid also its ``map``, as text, and its ``slip``.
        counts (Tensor): the visits of each state, int64 ``[S]``.
        representation (Tensor): f in every state, ``[S, d]``.
        option_values (Tensor): the options' action values in every state, ``[S, N, A]``.
        followed (Tensor): the function that each option follows, sign included, ``[S, N]``.
    """

    env: dict
    counts: Tensor | None = None
    representation: Tensor | None = None
    option_values: Tensor | None = None
    followed: Tensor | None = None

    @cached_property
    def grid(self) -> GridWorldEnv | None:
        """The rebuilt environment, if it was a grid."""
        if "map" not in self.env:
            return None
        return GridWorldEnv(self.env["map"], slip=self.env["slip"], observation="xy", seed=0)


def save_analysis(
    run_dir: str | os.PathLike[str],
    env: EnvBase,
    encoder: TensorDictModuleBase | None = None,
    option_actor: TensorDictModuleBase | None = None,
    counts: Tensor | None = None,
    *,
    reward: EigenReward | None = None,
) -> Path:
    """Evaluates representation and options in every state and stores them as ``analysis.npz`` (no pickle).

    Args:
        run_dir (path-like): the run's directory.
        env (EnvBase): its environment. Networks are only evaluated in environments with a state table.
        encoder (TensorDictModuleBase, optional): the representation f.
        option_actor (TensorDictModuleBase, optional): the options.
        counts (Tensor, optional): the visits of each state, ``[S]``.

    Keyword Args:
        reward (EigenReward, optional): defines the function that each option follows.

    Returns:
        Path: the file.

    Examples:
        >>> import tempfile, torch
        >>> from torchrl_dceo.analysis import load_analysis, save_analysis
        >>> from torchrl_dceo.envs import make_env
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_analysis(folder, make_env("S.G"), counts=torch.tensor([3, 2, 1]))
        ...     stored = load_analysis(folder)
        >>> stored.env["map"], stored.counts.tolist(), stored.representation
        ('S.G', [3, 2, 1], None)
    """
    table_env = find_table_env(env)
    arrays: dict[str, Tensor | None] = {"counts": counts}
    if table_env is not None:
        if encoder is not None:
            arrays["representation"] = state_values(encoder, table_env)
        if option_actor is not None:
            arrays["option_values"] = state_values(option_actor, table_env)
        if encoder is not None and reward is not None:
            representation = arrays["representation"]
            assert representation is not None
            arrays["followed"] = followed_eigenfunctions(reward, representation)
    stored: dict[str, Any] = {
        name: array.detach().cpu().numpy() for name, array in arrays.items() if array is not None
    }
    stored["env"] = np.array(json.dumps(_description(env, table_env)))
    target = Path(run_dir) / ANALYSIS_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    # Written to a second file first, so that a crash leaves the old one intact.
    temporary = target.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **stored)
    temporary.replace(target)
    return target


def load_analysis(run_dir: str | os.PathLike[str]) -> RunAnalysis:
    """Loads a file of :func:`save_analysis`.

    Args:
        run_dir (path-like): the run's directory.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or was not written by :func:`save_analysis`.

    Examples:
        >>> from torchrl_dceo.analysis import load_analysis
        >>> load_analysis("/nowhere")
        Traceback (most recent call last):
        FileNotFoundError: /nowhere holds no analysis.npz: a run writes it when it ends
    """
    path = Path(run_dir) / ANALYSIS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{run_dir} holds no {ANALYSIS_FILE}: a run writes it when it ends")
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in _ARRAYS if name in file}
            env = json.loads(str(file["env"]))
    except (ValueError, KeyError, OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or was not written by save_analysis ({error})"
        ) from error
    analysis = RunAnalysis(env, **arrays)
    _check(path, analysis)
    return analysis


_LARGEST_NPZ = 1 << 30  # bytes when unpacked


def check_npz(path: str | os.PathLike[str], largest: int = _LARGEST_NPZ) -> None:
    """Raises an error for an archive whose arrays are too large, before anything is unpacked.

    Args:
        path (path-like): the file.
        largest (int, optional): the largest size of the arrays in bytes. Default: a gigabyte.

    Examples:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from torchrl_dceo.analysis.run_files import check_npz
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "a.npz"
        ...     np.savez_compressed(path, a=np.zeros(1000))
        ...     check_npz(path, largest=1000)
        Traceback (most recent call last):
        ValueError: its arrays take 8128 bytes, more than the 1000 that are allowed
    """
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > largest:
        raise ValueError(f"its arrays take {size} bytes, more than the {largest} that are allowed")


def _description(env: EnvBase, table_env: TableEnv | None) -> dict:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    description: dict = {"name": type(env).__name__}
    if table_env is not None:
        description |= {"num_states": table_env.num_states, "slip": table_env.slip}
    if isinstance(table_env, GridWorldEnv):
        description["map"] = str(table_env.layout)
    return description


def _check(path: Path, analysis: RunAnalysis) -> None:
    num_states = analysis.env.get("num_states")
    for name in _ARRAYS:
        array = getattr(analysis, name)
        if array is not None and num_states is not None and array.shape[0] != num_states:
            raise ValueError(
                f"{path} is damaged: {name} has {array.shape[0]} states, the environment {num_states}"
            )
