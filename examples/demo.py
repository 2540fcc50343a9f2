"""Online DCEO on Nine Rooms beside a random walk of the same length: what does it reach, and what did it learn?"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from matplotlib.colors import LogNorm
from torch import Tensor

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import draw_run, exact_eigenfunctions, read_progress, state_values
from torchrl_dceo.analysis.figures import COLOURS, colormap, describe, new_figure, styled
from torchrl_dceo.analysis.figures.maps import show_map, show_marks
from torchrl_dceo.envs import GridWorldEnv, StateCounts, find_transform, make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.probes import eigen_reward, save_run_analysis


def random_walk(world: GridWorldEnv, frames: int) -> tuple[Tensor, Tensor]:
    """Visits of a uniformly random policy, and the number of distinct states over time."""
    states = world.rollout(frames, break_when_any_done=False)["next", "state_id"]
    first = torch.full((world.num_states,), frames)
    first.scatter_reduce_(0, states, torch.arange(frames), "amin")
    coverage = (first.unsqueeze(1) < torch.arange(0, frames + 1, 1000)).sum(0)
    return torch.bincount(states, minlength=world.num_states), coverage


@styled
def draw(
    world: GridWorldEnv, walk: tuple[Tensor, Tensor], counts: Tensor, run_dir: Path, f: Tensor
):
    """Coverage over time, both visitations, and the first learned eigenfunction beside the exact one."""
    figure = new_figure(12.5, 2.9, "Nine Rooms, the same number of steps")
    curve, *maps = figure.subplots(1, 5, width_ratios=[1.5, 1, 1, 1, 1])
    progress = read_progress(run_dir / "progress.csv")
    curve.plot(progress["frames"], progress["coverage"], color=COLOURS["first"], label="DCEO")
    curve.plot(
        torch.arange(len(walk[1])) * 1000, walk[1], color=COLOURS["second"], label="random walk"
    )
    curve.axhline(world.num_states, color=COLOURS["quiet"], linestyle=":")
    describe(curve, "steps", "states visited", "coverage")
    curve.legend(frameon=False, loc="lower right")
    most = float(max(counts.max(), walk[0].max()))
    for axes, visits, title in ((maps[0], walk[0], "random walk"), (maps[1], counts, "DCEO")):
        shown = visits.double().where(visits > 0, torch.nan)
        show_map(axes, world.layout, shown, cmap=colormap("visits"), norm=LogNorm(1, most))
        axes.set_title(f"visits, {title}: {int((visits > 0).sum())}")
        show_marks(axes, world.layout)
    # The map is symmetric, so its first non-constant eigenvalue is double: any mixture of the two is exact.
    _, exact = exact_eigenfunctions(world, 3)
    nearest = exact[:, 1:] @ (exact[:, 1:].T @ f.double())
    for axes, values, title in (
        (maps[2], f.double(), "learned eigenfunction"),
        (maps[3], nearest, "nearest exact one"),
    ):
        # A few cells that were just discovered may stand far out: clipped, so that they do not hide the rest.
        values = values.clamp(values.quantile(0.03), values.quantile(0.97))
        show_map(axes, world.layout, values - values.mean(), cmap=colormap("signed"))
        axes.set_title(title)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=30_000)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/demo"))
    arguments = parser.parse_args()
    tune_process()
    torch.manual_seed(0)
    run_dir: Path = arguments.run_dir
    shutil.rmtree(run_dir, ignore_errors=True)  # an earlier demo's

    world = GridWorldEnv(make_env("NineRooms").base_env.layout, seed=1)
    print(f"A random walk of {arguments.frames} steps first …")
    walk = random_walk(world, arguments.frames)

    print(
        f"… then online DCEO for as many: it learns eigenfunctions, options and the task at once. See {run_dir}"
    )
    env = make_env("NineRooms", batch_size=4, seed=0, visits="counts")
    agent = make_agent(
        "dceo", env, lr=5e-4, num_options=5, signs="both", option_prob=0.8, eps_frames=300_000
    )
    trainer = Trainer(agent, env, TrainConfig(total_frames=arguments.frames), run_dir=run_dir)
    trainer.run()

    save_run_analysis(trainer, run_dir)
    draw_run(run_dir)
    f = state_values(eigen_reward(agent).encoder, world)[:, 1]
    counts = find_transform(env, StateCounts).counts
    picture = run_dir / "demo.png"
    draw(world, walk, counts, run_dir, f).savefig(picture)
    ours, theirs = int((counts > 0).sum()), int((walk[0] > 0).sum())
    print(
        f"In {arguments.frames} steps DCEO visited {ours} of the {world.num_states} states, a random walk "
        f"{theirs}; the picture is {picture}."
    )


if __name__ == "__main__":
    main()
