"""A server of training runs: imports once, then runs each spec (a line of JSON) in a process of its own.

For each spec it prints the process number of the run, and how the run ended. Killing such a run kills a real process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))
from faulty_env import faulty

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.data import replay_buffer
from torchrl_dceo.envs import StateCounts, find_transform, make_env
from torchrl_dceo.training import train
from torchrl_dceo.training.errors import exit_with_a_sentence

SMALL = {
    "num_options": 2,
    "dimensions": 3,
    "batch_size": 8,
    "target_tau": None,
    "target_period": 7,
    "eps_frames": 4000,
}


def run(
    run_dir: str,
    agent: str,
    frames: int,
    seed: int = 0,
    batch_size: Sequence[int] = (10,),
    resume: bool = False,
    agent_settings: dict[str, Any] | None = None,
    name: str = "NineRooms",
    env_settings: dict[str, Any] | None = None,
    file_limit: int | None = None,
    stderr: str | None = None,
    fault: dict[str, Any] | None = None,
    **config: Any,
) -> None:
    """A short run with everything that has a state: two environments, evaluation, counts, a replay that overflows.

    ``file_limit`` is the size in bytes at which a file cannot grow, ``stderr`` where sentences go, ``fault`` what goes
    wrong in the environment (see faulty_env.py).
    """
    tune_process()
    replay_buffer._SEGMENT = 100_000  # several in a replay as short as these
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    if stderr is not None:
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    for set_seed in (torch.manual_seed, np.random.seed, random.seed):
        set_seed(seed)
    settings = {
        "update_period": 20,
        "learning_starts": 300,
        "replay_capacity": 2500,
        "eval_period": 600,
        "log_period": 100,
        "checkpoint_period": 300,
        "progress": False,
        **config,
    }
    if fault is not None:
        env = faulty(list(batch_size), **fault)
        small = {"batch_size": 8, "network": "mlp", **(agent_settings or {})}
        built = make_agent(agent, env, **small)
        train(built, env, total_frames=frames, run_dir=run_dir, resume=resume, **settings)
        return
    env_settings = {"room_size": 3, "starts": "anywhere"} if env_settings is None else env_settings
    env = make_env(name, batch_size=batch_size, seed=seed, visits="counts", **env_settings)
    known = {field.name for field in dataclasses.fields(AGENTS[agent].config)}
    small = {name: value for name, value in SMALL.items() if name in known}
    built = make_agent(agent, env, **{**small, **(agent_settings or {})})
    counts = find_transform(env, StateCounts)
    train(
        built,
        env,
        total_frames=frames,
        eval_env=make_env(name, batch_size=3, seed=seed + 1, **{**env_settings, "max_steps": 20}),
        discovery_env=make_env(
            name, batch_size=batch_size, seed=seed + 2, visits=counts, coverage=True, **env_settings
        ),
        run_dir=run_dir,
        resume=resume,
        worker_env=functools.partial(make_env, name, **env_settings),
        **settings,
    )


def ended(spec: dict[str, Any]) -> int:
    """Runs as a command does; returns the exit code."""
    try:
        with exit_with_a_sentence(spec["run_dir"]):
            run(**spec)
    except SystemExit as end:
        return int(end.code)
    return 0


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(ended(json.loads(line)))
        print(child, flush=True)  # noqa: T201
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
