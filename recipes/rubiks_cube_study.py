"""The cube within five moves: coverage of its 12,224 states without reward, and return with it.

    python recipes/rubiks_cube_study.py                    # every agent, five seeds, both parts
    python recipes/rubiks_cube_study.py --frames 1_000_000 --update-period 1 --num-envs 8 # in full, for a large machine

Runs that are complete are not run again, so the command can be stopped and given again.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
from tabular_figures import draw_curves
from tabular_study import nanstd, read_rows, rounded, write_rows

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.analysis import read_progress
from torchrl_dceo.cli.config import compose
from torchrl_dceo.cli.train import build

PARTS = ("coverage", "return")
# The paper: three options on the cube, and μ = 0.7 for all that have one. Short options, started seldom, are ours, and
# so is β (found on the cube within 3 moves): see the results' page.
OPTIONS = ["agent.num_options=3"]
AGENTS: dict[str, tuple[str, list[str]]] = {
    "ddqn": ("ddqn", []),
    "counts": ("counts", ["agent.bonus_scale=0.001"]),
    "ez_greedy": ("ez_greedy", ["agent.option_prob=0.7"]),
    "dceo": ("dceo", [*OPTIONS, "agent.option_prob=0.7"]),
    "dceo_short": ("dceo", ["agent.option_prob=0.1", "agent.option_duration=3"]),
    "dceo_two_phase": ("dceo_two_phase", [*OPTIONS, "agent.option_prob=0.7"]),
    "rnd": ("rnd", []),
    "diayn": ("diayn", [*OPTIONS, "agent.option_prob=0.7"]),
}
DEFAULT = ("ddqn", "counts", "ez_greedy", "dceo", "dceo_short", "dceo_two_phase")


def overrides(part: str, label: str, seed: int, given: argparse.Namespace) -> list[str]:
    """The command line of one run of ``recipes/rubiks_cube.py``."""
    agent, own = AGENTS[label]
    frames = given.frames
    arguments = [
        f"agent={agent}",
        f"seed={seed}",
        f"total_frames={frames}",
        f"num_envs={given.num_envs}",
        f"update_period={given.update_period}",
        f"log_period={frames // 50}",
        f"eval_period={frames // 25}",
        "checkpoint_period=null",
        "progress=true",
        f"agent.eps_frames={frames // 2}",
        *own,
    ]
    discovers = agent in ("dceo_two_phase", "diayn")
    if discovers:
        arguments += [f"agent.discovery_frames={frames // 4}", f"agent.eps_frames={frames // 4}"]
    if part == "coverage":
        arguments += ["env.coverage=true"]
        # ε = 1 all the time, as in a discovery; for counts the greedy action is what explores.
        if agent == "counts":
            arguments += [f"agent.eps_frames={frames // 50}"]
        elif discovers:
            arguments += [f"agent.discovery_frames={frames}"]
        else:
            arguments += ["agent.eps_end=1.0"]
    return arguments


def run(part: str, label: str, seed: int, given: argparse.Namespace) -> Path:
    """One run, unless it is there; returns its directory."""
    folder = given.runs / part / label / f"seed_{seed}"
    if (folder / "done").is_file():
        return folder
    settings = compose(["env=rubiks_cube", *overrides(part, label, seed, given)])
    trainer = build(settings, folder)
    if trainer.holds_a_run:
        trainer.resume()
    trainer.probes = ()  # of twelve thousand states: too slow for a run of a minute
    trainer.run()
    (folder / "done").touch()
    return folder


def curve(part: str, label: str, folders: list[Path]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds, a row for each row of the logs."""
    name = "coverage" if part == "coverage" else "eval_return"
    logs = [read_progress(folder) for folder in folders]
    rows = []
    for i, frames in enumerate(logs[0]["frames"]):
        columns = {name} if part == "coverage" else {name, "train_return", "coverage"}
        row: dict[str, Any] = {"part": part, "method": label, "frames": int(frames)}
        for column in sorted(columns):
            values = torch.tensor([log[column][i] for log in logs], dtype=torch.float64)
            # A seed whose episodes are all under way has no return to show since the last row.
            row[f"{column}_mean"] = rounded(values.nanmean())
            row[f"{column}_std"] = rounded(nanstd(values))
        row["seeds"] = len(logs)
        rows.append(row)
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--agents", nargs="+", choices=list(AGENTS), default=DEFAULT)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=60_000)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--update-period", type=int, default=16)
    parser.add_argument("--runs", type=Path, default=Path("runs/rubiks_cube_study"))
    parser.add_argument("--out", type=Path, default=Path("results/rubiks_cube"))
    parser.add_argument("--draw", action="store_true", help="only draw what is there")
    given = parser.parse_args()
    tune_process()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "curves.csv"
    for part, label in itertools.product(() if given.draw else given.parts, given.agents):
        if part == "coverage" and label == "dceo_two_phase":
            continue  # its discovery is dceo with ε = 1
        folders = [run(part, label, seed, given) for seed in range(given.seeds)]
        rows = [row for row in read_rows(path) if (row["part"], row["method"]) != (part, label)]
        write_rows(path, [*rows, *curve(part, label, folders)])
    rows = [{**row, "world": "cube5"} for row in read_rows(path)]
    for part, name, title in (
        ("coverage", "coverage", "Coverage without reward"),
        ("return", "eval_return", "Return of the greedy policy"),
    ):
        there = [row for row in rows if row["part"] == part]
        if there:
            delays = {"cube5": max(int(row["frames"]) for row in there) // 4}
            figure = draw_curves(there, name, title, delays if part == "return" else None)
            figure.savefig(given.out / f"{part}.png")


if __name__ == "__main__":
    main()
