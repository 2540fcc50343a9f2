"""Trains the pretrained option sets of the package, from random walks without reward, and measures them.

    python research/pretrained_options.py nine_rooms maze escape_room
    python research/pretrained_options.py miniworld_four_rooms --run runs/3d  # those that a run of dceo has learned

Each set goes to torchrl_dceo/training/pretrained/<name>, and a row to results/pretrained_options/measured.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import Agent, make_agent
from torchrl_dceo.analysis import (
    find_table_env,
    followed_eigenfunctions,
    option_climb,
    state_values,
)
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import OptionSet, fit, load_agent, load_options, save_options

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "torchrl_dceo" / "training" / "pretrained"
TABLE = ROOT / "results" / "pretrained_options" / "measured.csv"
# Walks start anywhere where the map allows it, so that options are good everywhere.
SETS: dict[str, dict[str, Any]] = {
    "nine_rooms": {
        "env": {"name": "NineRooms", "starts": "anywhere"},
        "agent": {"batch_size": 64, "lr": 5e-4},
    },
    "maze": {
        "env": {"name": "Maze", "starts": "anywhere"},
        "agent": {"batch_size": 64, "lr": 5e-4},
    },
    "escape_room": {
        "env": {"name": "EscapeRoom", "room_size": 3, "max_steps": 200},
        "agent": {"batch_size": 64},
    },
    # From a run of the recipe: options from 20,000 random steps visited no more cells than a random walk.
    "miniworld_four_rooms": {
        "env": {
            "name": "MiniWorldFourRoomsStrafe",
            "obs_width": 40,
            "obs_height": 30,
            "samples": 1,
            "start_seed": 1000,
        },
    },
}


def build(settings: dict[str, Any], seed: int, batch_size: int, **more: Any):
    """The environment of a set, without reward."""
    env = {key: value for key, value in {**settings["env"], **more}.items() if value is not None}
    return make_env(env.pop("name"), seed=seed, batch_size=batch_size, coverage=True, **env)


def visited(chosen: OptionSet, settings: dict[str, Any], envs: int = 16) -> dict[str, float]:
    """Distinct states in 100 steps from the start: a random option for 20 steps at a time, and a random walk."""
    found = {}
    start = {"starts": None} if "starts" in settings["env"] else {}
    for who in ("options", "random"):
        torch.manual_seed(0)
        env = build(settings, 1, envs, **start)
        td = env.reset()
        option = torch.zeros(envs, dtype=torch.long)
        seen = []
        for step in range(100):
            if step % 20 == 0:
                option = torch.randint(chosen.options.num_options, (envs,))
            if who == "options":
                values = chosen.options(td)["option_action_value"]
                td["action"] = values[torch.arange(envs), option].argmax(-1)
            else:
                td = env.rand_action(td)
            _, td = env.step_and_maybe_reset(td)
            seen.append(td["state_id"].flatten())
        found[who] = sum(len(row.unique()) for row in torch.stack(seen, 1)) / envs
        env.close()
    return found


def climbed(chosen: OptionSet, settings: dict[str, Any]) -> float:
    """The mean climb of the options, where the states can be listed."""
    env = build(settings, 0, 1)
    table_env = find_table_env(env)
    if table_env is None or chosen.encoder is None or chosen.reward is None:
        return float("nan")
    followed = followed_eigenfunctions(chosen.reward, state_values(chosen.encoder, table_env))
    values = state_values(chosen.options, table_env)
    return float(option_climb(values, followed, table_env.next_state).mean().nanmean())


def learned(settings: dict[str, Any], updates: int, seed: int) -> tuple[Agent, int]:
    """An agent whose options learned from random walks, and the frames of these."""
    torch.manual_seed(seed)
    envs, steps = 50, 600
    env = build(settings, seed, envs)
    own = {"laplacian_measure": "visits", **settings["agent"]}
    agent = make_agent("dceo", env, **own)
    replay = make_replay_buffer(
        3 * envs * steps,
        num_streams=envs,
        n_steps=5,
        gamma=0.99,
        batch_size=own["batch_size"],
        seed=seed,
    )
    for _ in range(steps // 100):
        replay.extend(env.rollout(100, break_when_any_done=False))
    env.close()
    learning = [o for o in ("centring", "laplacian", "reward", "option") if o in agent.objectives]
    fit(agent, replay, updates, objectives=learning)
    return agent, envs * steps


def make_set(name: str, updates: int, seed: int, run: Path | None) -> dict[str, Any]:
    """Trains one set, or takes it from a run, and saves it; returns its row."""
    settings, start = SETS[name], time.process_time()
    if run is None:
        agent, frames = learned(settings, updates, seed)
    else:
        loaded = load_agent(run)
        agent, frames, updates, seed = loaded.agent, *counted(run)
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    save_options(FOLDER / name, agent)
    chosen = load_options(FOLDER / name)
    return {
        "name": name,
        "frames": frames,
        "updates": updates,
        "seed": seed,
        "option_climb": round(climbed(chosen, settings), 3),
        **{f"states_{who}": round(n, 1) for who, n in visited(chosen, settings).items()},
        "kilobytes": sum(f.stat().st_size for f in (FOLDER / name).rglob("*")) // 1000,
        "seconds": round(time.process_time() - start),
    }


def counted(run: Path) -> tuple[int, int, int]:
    """Frames, updates and seed of a run."""
    with (run / "progress.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    seed = json.loads((run / "run.json").read_text())["train"]["seed"]
    return int(last["frames"]), int(last["updates"]), seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=SETS)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="take the options of this run instead")
    arguments = parser.parse_args()
    tune_process()
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        measured = make_set(name, arguments.updates, arguments.seed, arguments.run)
        print(measured, flush=True)
        rows = {}
        if TABLE.exists():
            with TABLE.open() as file:
                rows = {old["name"]: old for old in csv.DictReader(file)}
        rows[name] = measured
        with TABLE.open("w") as file:
            writer = csv.DictWriter(file, list(measured))
            writer.writeheader()
            writer.writerows(rows[name] for name in SETS if name in rows)


if __name__ == "__main__":
    main()
