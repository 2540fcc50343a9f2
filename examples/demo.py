"""A task that exploration with options solves and ε-greedy does not; coverage of a larger map. About three minutes.

    python examples/demo.py [--seed 0] [--out runs/demo]

Part 1: the small Nine Rooms, rooms of 3 x 3 cells and episodes of 50 steps. The reward is in the far corner, 20 steps
away: uniformly random actions reach it in one of 9,000 episodes, and 40,000 steps are 800 episodes. Online DCEO learns
to reach it; Double DQN with ε-greedy exploration rarely finds the goal (the summary reports whether it did).
Part 2: Nine Rooms at full size without reward: the number of states visited by DCEO and by a random walk.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import (
    Progress,
    find_table_env,
    followed_eigenfunctions,
    greedy_path,
    option_climb,
    read_progress,
    state_values,
)
from torchrl_dceo.analysis.figures import COLOURS, colormap, describe, new_figure, styled
from torchrl_dceo.analysis.figures.maps import show_arrows, show_map, show_marks
from torchrl_dceo.envs import GridWorldEnv, StateCounts, find_transform, make_env
from torchrl_dceo.training import Trainer, train
from torchrl_dceo.training.probes import eigen_reward, option_actor

SMALL = {"name": "NineRooms", "room_size": 3, "max_steps": 50}
LARGE = {"name": "NineRooms", "coverage": True}


@dataclass
class Snapshot:
    """The state of an agent at some point of its training."""

    frames: int
    counts: Tensor
    functions: Tensor | None = None  # [S, N], the function of each option
    policies: Tensor | None = None  # [S, N], its greedy action
    best: int = 0  # the option that gains most of the range of its function
    path: list[int] = field(default_factory=list)  # the main learner's greedy path, without slips


@dataclass
class Snapshots:
    """A probe that stores a snapshot at every evaluation: visits, options and their eigenfunctions."""

    kept: list[Snapshot] = field(default_factory=list)

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        counts = find_transform(trainer.env, StateCounts)
        assert counts is not None
        shot = Snapshot(trainer.counters.frames, counts.counts.clone())
        env = find_table_env(trainer.env)
        values = state_values(trainer.agent.policy[0], env, out_key="action_value")
        start = env.layout.cells.index(env.layout.starts[0])
        shot.path = greedy_path(values, env.next_state, start)
        reward, options = eigen_reward(trainer.agent), option_actor(trainer.agent)
        if reward is not None and options is not None:
            values = state_values(options, env)
            followed = followed_eigenfunctions(reward, state_values(reward.encoder, env))
            climb = option_climb(values, followed, env.next_state).mean()
            shot.functions, shot.policies = followed, values.argmax(-1)
            shot.best = int(climb.nan_to_num(-1).argmax())
        self.kept.append(shot)
        return {}


def run(agent: str, part: dict, frames: int, run_dir: Path, seed: int) -> Snapshots:
    """Trains one agent."""
    settings = dict(part)
    torch.manual_seed(seed)
    env = make_env(settings.pop("name"), batch_size=8, seed=seed, visits="counts", **settings)
    eps_frames = frames // 2 if part is SMALL else 10 * frames  # without reward ε stays high
    snapshots = Snapshots()
    train(
        make_agent(agent, env, eps_frames=eps_frames),
        env,
        run_dir=run_dir,
        total_frames=frames,
        eval_period=1000,
        eval_episodes=20 if part is SMALL else 0,
        checkpoint_period=None,
        probes=[snapshots],
        draw=False,
        seed=seed,
    )
    return snapshots


def random_walk(frames: int, seed: int) -> tuple[Tensor, Tensor]:
    """Visits of a uniformly random policy, and the number of distinct states after every 1000 steps."""
    env = make_env("NineRooms", coverage=True, batch_size=8, seed=seed).base_env
    states = env.rollout(frames // 8, break_when_any_done=False)["next", "state_id"].T.flatten()
    first = torch.full((env.num_states,), frames)
    first.scatter_reduce_(0, states, torch.arange(len(states)), "amin")
    coverage = (first.unsqueeze(1) < torch.arange(0, frames + 1, 1000)).sum(0)
    return torch.bincount(states, minlength=env.num_states), coverage


def table(part: dict) -> GridWorldEnv:
    """The environment of one part of the demo."""
    settings = dict(part)
    return make_env(settings.pop("name"), seed=0, **settings).base_env


def show_visits(axes, env: GridWorldEnv, counts: Tensor, most: float, title: str) -> None:
    """How often each state was visited, on a logarithmic scale."""
    shown = counts.double().where(counts > 0, torch.nan)
    show_map(axes, env.layout, shown, cmap=colormap("visits"), norm=LogNorm(1, most))
    show_marks(axes, env.layout)
    axes.set_title(title)


@styled
def draw(small: dict[str, Progress], shots: dict[str, Snapshots], large: Progress, walk) -> Figure:
    """Both parts: curves, visits, and one option over its eigenfunction."""
    figure = new_figure(11.5, 6.4, "Exploration with options: Nine Rooms")
    rows = figure.subplots(2, 4, width_ratios=[1.45, 1, 1, 1])
    env, full = table(SMALL), table(LARGE)
    curve = rows[0, 0]
    for name, colour in (("dceo", "first"), ("ddqn", "second")):
        done = ~torch.as_tensor(small[name]["eval_return"]).isnan()
        frames, returns = (
            torch.as_tensor(small[name][key])[done] for key in ("frames", "eval_return")
        )
        curve.plot(frames, returns, color=COLOURS[colour], label=name)
    describe(curve, "steps", "greedy return", "small rooms: return")
    curve.set_ylim(-0.05, 1.05)
    curve.legend(frameon=False, loc="center left")
    last = {name: shots[name].kept[-1] for name in shots}
    most = float(max(shot.counts.max() for shot in last.values()))
    for axes, name in ((rows[0, 1], "ddqn"), (rows[0, 2], "dceo")):
        show_visits(axes, env, last[name].counts, most, f"visits, {name}")
    show_option(rows[0, 3], env, last["dceo"])
    curve = rows[1, 0]
    curve.plot(large["frames"], large["coverage"], color=COLOURS["first"], label="dceo")
    steps = torch.arange(len(walk[1])) * 1000
    curve.plot(steps, walk[1], color=COLOURS["second"], label="random walk")
    curve.axhline(full.num_states, color=COLOURS["quiet"], linestyle=":")
    describe(curve, "steps", "states visited", "full size: coverage")
    curve.legend(frameon=False, loc="lower right")
    counts = shots["large"].kept[-1].counts
    most = float(max(counts.max(), walk[0].max()))
    for axes, visits, name in ((rows[1, 1], walk[0], "random walk"), (rows[1, 2], counts, "dceo")):
        show_visits(axes, full, visits, most, f"{name}: {int((visits > 0).sum())} states")
    show_option(rows[1, 3], full, shots["large"].kept[-1])
    return figure


def show_option(axes, env: GridWorldEnv, shot: Snapshot, option: int | None = None) -> None:
    """An option's greedy policy over its learned eigenfunction; by default the best option."""
    assert shot.functions is not None and shot.policies is not None
    option = shot.best if option is None else option
    values, policy = shot.functions[:, option], shot.policies[:, option]
    values = values.clamp(values.quantile(0.03), values.quantile(0.97))
    show_map(axes, env.layout, values - values.mean(), cmap=colormap("signed"))
    states = torch.arange(env.num_states)
    show_arrows(axes, env.layout, policy, env.next_state[states, policy] != states)
    axes.set_title(f"option {option + 1} and its eigenfunction")


@styled
def draw_frame(env: GridWorldEnv, shot: Snapshot, most: float, title: str, option: int) -> Figure:
    """One frame of the film."""
    figure = new_figure(8.4, 3.5, title)
    visits, option_axes, path_axes = figure.subplots(1, 3)
    seen = int((shot.counts > 0).sum())
    show_visits(visits, env, shot.counts, most, f"visits: {seen} of {env.num_states} states")
    show_option(option_axes, env, shot, option)
    show_map(
        path_axes, env.layout, torch.full((env.num_states,), torch.nan), cmap=colormap("visits")
    )
    rows, columns = torch.tensor([env.layout.cells[state] for state in shot.path]).T
    path_axes.plot(columns, rows, color=COLOURS["fourth"], linewidth=3, solid_capstyle="round")
    path_axes.plot(columns[-1:], rows[-1:], "o", color=COLOURS["second"], markersize=8)
    show_marks(path_axes, env.layout)
    path_axes.set_title("greedy path")
    return figure


def film(path: Path, env: GridWorldEnv, shots: list[Snapshot], progress: Progress) -> None:
    """Visits, eigenfunction and option during training, as a GIF: the option that is best at the end."""
    most, option = float(shots[-1].counts.max()), shots[-1].best
    returns = dict(zip(progress["frames"], progress["eval_return"], strict=True))
    frames, part = [], path.with_suffix(".part.png")
    for shot in shots:
        title = f"{shot.frames:,} steps, greedy return {returns[shot.frames]:.2f}"
        draw_frame(env, shot, most, title, option).savefig(part, dpi=100)
        with Image.open(part) as image:
            frames.append(image.convert("RGB").quantize(64, dither=Image.Dither.NONE))
    part.unlink()
    durations = [250] * (len(frames) - 1) + [2500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=40_000, help="of each agent (default: 40000)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    given = parser.parse_args()
    tune_process()
    shutil.rmtree(given.out, ignore_errors=True)  # of an earlier demo
    start = time.monotonic()
    shots, small = {}, {}
    for name in ("ddqn", "dceo"):
        print(f"Small Nine Rooms, {given.frames:,} steps of {name}:")
        shots[name] = run(name, SMALL, given.frames, given.out / name, given.seed)
        small[name] = read_progress(given.out / name / "progress.csv")
    print(f"Nine Rooms at full size without reward, {given.frames:,} steps of dceo:")
    shots["large"] = run("dceo", LARGE, given.frames, given.out / "large", given.seed)
    large = read_progress(given.out / "large" / "progress.csv")
    walk = random_walk(given.frames, given.seed)
    print("Drawing …")
    draw(small, shots, large, walk).savefig(given.out / "demo.png", dpi=110)
    film(given.out / "demo.gif", table(SMALL), shots["dceo"].kept, small["dceo"])

    goals = {name: sum(value > 0 for value in small[name]["train_return"]) for name in small}
    ends = {name: float(small[name]["eval_return"][-1]) for name in small}
    seen = int((shots["large"].kept[-1].counts > 0).sum())
    print(
        f"\nSmall Nine Rooms after {given.frames:,} steps: dceo has a greedy return of {ends['dceo']:.2f}, "
        f"ddqn of {ends['ddqn']:.2f}"
        + (
            " and never reached the goal."
            if not goals["ddqn"]
            else f" (it reached the goal in {goals['ddqn']} rows of its log)."
        )
        + f"\nFull size: dceo visited {seen} of {len(walk[0])} states, a random walk {int((walk[0] > 0).sum())}."
        + f"\nFigure: {given.out / 'demo.png'}   film: {given.out / 'demo.gif'}   "
        + f"({time.monotonic() - start:.0f} seconds)"
    )


if __name__ == "__main__":
    main()
