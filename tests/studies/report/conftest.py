"""A small made-up study: two environments, of which one changes, three agents, two seeds, and what they learned."""

from __future__ import annotations

import json

import pytest
import torch

from torchrl_dceo.analysis import save_analysis
from torchrl_dceo.envs import make_env
from torchrl_dceo.studies.report import make_report

MAP = "S....\n.###.\n....G"
FINAL = {"dceo": 1.0, "dceo_two_phase": 0.8, "ddqn": 0.25}
COMMAND = "dceo study run made_up --preset 'laptop' && echo <done>"


def log(agent, seed, changes):
    rows = [
        "frames,updates,phase,map,train_return,eval_return,coverage,option_climb,option_starts_1"
    ]
    for i in range(1, 11):
        value = FINAL[agent] * (i - seed) / 10 if not changes or i <= 5 else FINAL[agent] * i / 20
        climb = "" if agent == "ddqn" else f"{i / 20}"
        phase = int(agent == "dceo_two_phase" and i > 4)
        rows.append(
            f"{1000 * i},{100 * i},{phase},{int(changes and i > 5)},{value / 2},{max(0, value)},{i + seed},{climb},3"
        )
    return "\n".join(rows) + "\n"


def save_run(folder):
    env = make_env(MAP)
    count = env.num_states
    save_analysis(folder, env, counts=torch.arange(count) % 5)
    return folder


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """The folder of the study, and its run directories."""
    root = tmp_path_factory.mktemp("report")
    folder, runs = root / "results", {}
    for environment, changes in (("NineRooms", False), ("GoalSwitch", True)):
        for agent in FINAL:
            for seed in (0, 1):
                path = folder / environment / agent / f"seed_{seed}.csv"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(log(agent, seed, changes))
                if agent != "dceo_two_phase" and seed == 0:
                    run = root / "runs" / f"{environment}_{agent}_{seed}"
                    runs[environment, agent, seed] = save_run(run)
                    (run / "progress.csv").write_text(path.read_text())
    config = "agent: {name: dceo}\nseed: 0\ntotal_frames: 10000\nnote: <b>&</b>\n"
    (folder / "NineRooms" / "dceo" / "config.yaml").write_text(config)
    origin = {
        "preset": "laptop", "seeds": [0, 1], "commits": ["0123abc"], "versions": {"torch": "2.13.0"},
        "done": 11, "runs": [{"name": "r", "state": "done"}] * 11
        + [{"name": "Maze_rnd_3", "state": "failed", "frames": 70, "command": "python <it>"}],
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(origin))
    return folder, runs


@pytest.fixture(scope="session")
def page(study):
    """Its page."""
    folder, runs = study
    return make_report(
        folder,
        title="Made up & <tested>",
        summary="Who is first?",
        commands=[COMMAND],
        runs=runs,
        repetitions=50,
    )
