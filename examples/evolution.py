"""How do the eigenfunctions evolve while an online DCEO agent learns, starting at the bottom left?

    python examples/evolution.py NineRooms nine_rooms.png
    python examples/evolution.py GridMaze grid_maze.png frames=40000 norm=log1p barrier=0.5 centre=false

Draws f_2 … f_11 on the map at six moments of the run, beneath the exact eigenfunctions, and writes their similarity
beside the picture, as CSV.
"""

import sys
from pathlib import Path

import torch

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions, state_values, table_world
from torchrl_dceo.analysis.figures.representation import draw_comparison
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.logging.logs import CSVLog
from torchrl_dceo.training.probes import SpectrumProbe, eigen_reward

SHOWN = 6  # moments
CORNERS = {"NineRooms": {"starts": [(17, 1)], "goals": [(1, 17)]}, "GridMaze": {}}


def main(name: str, picture: str, *settings: str) -> None:
    given = dict(setting.split("=", 1) for setting in settings)
    frames, seed = int(given.pop("frames", 48_000)), int(given.pop("seed", 0))
    laplacian = {"norm": given.pop("norm", "squared"), "barrier": float(given.pop("barrier", 0.1))}
    laplacian["centre_pixels"] = given.pop("centre", "true") == "true"
    if given:
        sys.exit(
            f"unknown settings {sorted(given)}; choose from frames, seed, norm, barrier, centre"
        )
    tune_process()
    torch.manual_seed(seed)
    env = make_env(name, seed=seed, visits="counts", **CORNERS[name])
    agent = make_agent("dceo", env, eps_frames=frames, dimensions=11, lr=5e-4, **laplacian)
    world, snapshots = table_world(env), {}
    assert isinstance(world, GridWorldEnv)
    log = CSVLog(Path(picture).with_suffix(".csv"))
    measure = SpectrumProbe()

    def snapshot(trainer: Trainer) -> dict[str, float]:
        done = trainer.counters.frames
        snapshots[f"{done // 1000}k"] = state_values(eigen_reward(agent).encoder, world).double()
        row = measure(trainer)
        log.write({"frames": done, **{key: round(value, 4) for key, value in row.items()}})
        return row

    period = frames // SHOWN
    train = TrainConfig(total_frames=frames, eval_period=period, log_period=period, seed=seed)
    Trainer(agent, env, train, probes=(snapshot,)).run()
    values, exact = exact_eigenfunctions(world, 11)
    figure = draw_comparison(
        world.layout,
        exact[:, 1:],
        {moment: functions[:, 1:] for moment, functions in snapshots.items()},
        values[1:],
        titles=[f"$e_{{{i}}}$" for i in range(2, 12)],
        title=f"{name}: eigenfunctions while DCEO learns (rows: frames)",
    )
    figure.savefig(picture)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in CORNERS:
        sys.exit(__doc__)
    main(*sys.argv[1:])
