"""The commands on finished runs: ``dceo evaluate``, ``render``, ``plot``, ``compare``, ``diagnose``, ``list``."""
# ruff: noqa: T201  (commands for people: printing is what they are for)

from __future__ import annotations

import argparse
import inspect
import logging
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.libs.gym import GymWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_dceo.analysis.statistics.comparison import collect_run, log_in_study
from torchrl_dceo.analysis.statistics.figures import METRICS, compare
from torchrl_dceo.envs.gym import StatefulGymEnv
from torchrl_dceo.settings import imported
from torchrl_dceo.training.agent_io import LearnedAgent, load_agent
from torchrl_dceo.training.evaluation import evaluate as mean_return
from torchrl_dceo.training.run_settings import read_settings

__all__ = [
    "compare_runs",
    "diagnose",
    "evaluate",
    "film",
    "plot",
    "render",
    "show_names",
]

_MISTAKES = (ValueError, FileNotFoundError, ImportError, RuntimeError, TypeError)


_SMALLEST_SIDE = 240  # of a film, in pixels


def plot(arguments: Sequence[str] | None = None) -> int:
    """Draws the figures of runs again; returns 0, or 2 if there is nothing that can be drawn.

    Examples:
        >>> from torchrl_dceo.cli.runs import plot
        >>> plot(["/nowhere"])
        2
    """
    from torchrl_dceo.analysis.figures.run import draw_run  # slow to import

    parser = argparse.ArgumentParser(
        prog="dceo plot", description="Draws the figures of runs again, into their directories."
    )
    parser.add_argument("run_dir", nargs="+", help="the directory of a run")
    parser.add_argument("--format", default="png", help="png (default), pdf or svg")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for run_dir in options.run_dir:
        try:
            for figure in draw_run(run_dir, options.format):
                print(figure)
        except (FileNotFoundError, ValueError, ImportError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


def show_names(arguments: Sequence[str] | None = None) -> int:
    """Lists environments, agents and studies; returns 0.

    Examples:
        >>> from torchrl_dceo.cli.runs import show_names
        >>> show_names(["agents"])
        dceo
        dceo_two_phase
        ...
        0
    """
    from torchrl_dceo.agents import AGENTS
    from torchrl_dceo.cli.config import CONF
    from torchrl_dceo.studies.catalogue import STUDIES

    names = {
        "environments": sorted(path.stem for path in (CONF / "env").glob("*.yaml")),
        "agents": list(AGENTS),
        "studies": list(STUDIES),
    }
    uses = {
        "environments": "dceo train env=<name>",
        "agents": "dceo train agent=<name>",
        "studies": "dceo study run <name>",
    }
    parser = argparse.ArgumentParser(
        prog="dceo list", description="Lists environments, agents and studies."
    )
    parser.add_argument("what", nargs="?", choices=list(names), help="only these, one per line")
    chosen = parser.parse_args(arguments).what
    if chosen is not None:
        print("\n".join(names[chosen]))
        return 0
    for what, each in names.items():
        print(f"{what} ({uses[what]})", *(f"  {name}" for name in each), "", sep="\n")
    return 0


def evaluate(arguments: Sequence[str] | None = None) -> int:
    """Prints the greedy return of a run's agent; returns 0, or 2 after an error message.

    Examples:
        >>> from torchrl_dceo.cli.runs import evaluate
        >>> evaluate(["/nowhere"])
        2
    """
    parser = argparse.ArgumentParser(
        prog="dceo evaluate", description="The greedy return of a run's agent."
    )
    parser.add_argument("run_dir", help="the directory of a run")
    parser.add_argument("--episodes", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", type=int, default=10_000, help="of the environment")
    options = parser.parse_args(arguments)
    try:
        if options.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {options.episodes}")
        learned = load_agent(options.run_dir, seed=options.seed)
        returns = [mean_return(learned.policy, learned.env) for _ in range(options.episodes)]
    except _MISTAKES as error:
        print(f"dceo evaluate: {error}", file=sys.stderr)
        return 2
    print(
        f"{options.run_dir}: {learned.metadata['agent']['name']} after {learned.metadata['frames']} frames\n"
        f"greedy return over {len(returns)} episodes: mean {statistics.fmean(returns):.4g}, "
        f"median {statistics.median(returns):.4g}, lowest {min(returns):.4g}, highest {max(returns):.4g}"
    )
    return 0


def render(arguments: Sequence[str] | None = None) -> int:
    """Writes a video of a run's greedy policy or of one of its options; returns 0, or 2 after an error message.

    Examples:
        >>> from torchrl_dceo.cli.runs import render
        >>> render(["/nowhere", "-o", "film.mp4"])
        2
    """
    parser = argparse.ArgumentParser(
        prog="dceo render",
        description="Writes a film of a run's policy or of one of its options.",
    )
    parser.add_argument("run_dir", help="the directory of a run")
    parser.add_argument("--option", type=int, help="follow this option, from 1 on, not the policy")
    parser.add_argument("--steps", type=int, default=200, help="at most (default: 200)")
    parser.add_argument("--fps", type=int, default=12, help="frames per second (default: 12)")
    parser.add_argument("--seed", type=int, default=10_000, help="of the environment")
    parser.add_argument("-o", "--out", default="film.mp4", help=".mp4, or .gif without PyAV")
    options = parser.parse_args(arguments)
    try:
        from torchrl_dceo.analysis.figures import save_rollout_gif
        from torchrl_dceo.analysis.figures.birds_eye_figures import save_film

        out = Path(options.out)
        if out.suffix not in (".mp4", ".gif"):
            raise ValueError(f"a film is an .mp4 or a .gif, got -o {out}")
        learned = _with_pictures(options.run_dir, options.seed)
        frames = list(film(learned, option=options.option, max_steps=options.steps))
        if out.suffix == ".gif":
            written = save_rollout_gif(out, frames, seconds_per_step=1 / options.fps)
        else:
            written = save_film(out, frames, frames_per_second=options.fps)
    except _MISTAKES as error:
        print(f"dceo render: {error}", file=sys.stderr)
        return 2
    print(f"{written}: {len(frames)} frames")
    if written.suffix != out.suffix:
        needs = "an mp4 needs PyAV: pip install 'torchrl-dceo[video]'"
        print(f"dceo render: {written} in place of {out}: {needs}", file=sys.stderr)
    return 0


def _with_pictures(run_dir: str, seed: int) -> LearnedAgent:
    """Loads the agent of a run with an environment that can be rendered (Gymnasium needs ``render_mode``)."""
    # Gymnasium's classic environments draw with SDL, which fails without a screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    env = read_settings(run_dir).get("env") or {}
    more: dict[str, Any] = {}
    if env.get("name") == "gym" and _draws_on_request(env):
        more["kwargs"] = {**(env.get("kwargs") or {}), "render_mode": "rgb_array"}
    return load_agent(run_dir, seed=seed, **more)


def _draws_on_request(env: Mapping[str, Any]) -> bool:
    """Whether an environment accepts Gymnasium's ``render_mode``: registered ones do, your own may."""
    if env.get("id") is not None:
        return True
    parameters = inspect.signature(imported(env["entry_point"])).parameters
    return "render_mode" in parameters


@torch.no_grad()
def film(
    learned: LearnedAgent, *, option: int | None = None, max_steps: int = 200
) -> Iterator[np.ndarray]:
    """The frames of one episode, ``uint8 [H, W, 3]``, under the greedy policy or under an option.

    Args:
        learned (LearnedAgent): from :func:`~torchrl_dceo.training.load_agent`, with an unbatched environment.

    Keyword Args:
        option (int, optional): the option to follow, from 1 on. Default: ``None``, the policy.
        max_steps (int, optional): the maximum number of steps. Default: 200.
    """
    if option is not None:
        if learned.options is None:
            raise ValueError("this agent has no options: remove --option to render its policy")
        if not 1 <= option <= learned.options.num_options:
            raise ValueError(
                f"--option must lie between 1 and {learned.options.num_options}, got {option}"
            )
    env = learned.env
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        step = env.reset()
        yield _picture(env, step)
        for _ in range(max_steps):
            if option is None:
                acted = learned.policy(step)
            else:
                assert learned.options is not None
                values = learned.options(step)["option_action_value"]
                acted = step.set("action", values[option - 1].argmax(-1))
            stepped = env.step(acted)["next"]
            yield _picture(env, stepped)
            if stepped["done"].any():
                return
            step = stepped.exclude("reward")


def _picture(env: EnvBase, step: TensorDictBase) -> np.ndarray:
    innermost = env
    while isinstance(innermost, TransformedEnv):
        innermost = innermost.base_env
    drawn: Any = None
    if isinstance(innermost, GymWrapper) and not isinstance(innermost, StatefulGymEnv):
        if innermost._env.unwrapped.render_mode == "rgb_array":
            drawn = innermost._env.render()
    elif callable(getattr(innermost, "render", None)):
        drawn = innermost.render()
    if drawn is None:
        pixels = step.get("pixels", None)
        if pixels is None:
            raise ValueError(
                f"{type(innermost).__name__} cannot be rendered: create it with render_mode='rgb_array', or "
                "with pixels as observation"
            )
        # Images of indices, in MiniGrid up to 10, would be almost black.
        brightest = float(env.full_observation_spec["pixels"].space.high.max())
        drawn = (_as_rgb(pixels).float() * (255 / brightest)).clamp(max=255)
    return _enlarged(np.asarray(drawn, dtype=np.uint8))


def _as_rgb(pixels: Tensor) -> Tensor:
    """The newest frame of an image ``[C, H, W]``: its last three channels, or the last one as grey."""
    channels = pixels[-3:] if pixels.shape[0] % 3 == 0 else pixels[-1:].expand(3, -1, -1)
    return channels.movedim(0, -1)


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """Enlarges small frames, to even sizes as an mp4 needs."""
    factor = max(1, -(-_SMALLEST_SIDE // min(picture.shape[:2])))
    large = picture.repeat(factor, 0).repeat(factor, 1)
    height, width = (length - length % 2 for length in large.shape[:2])
    return np.ascontiguousarray(large[:height, :width])


def diagnose(arguments: Sequence[str] | None = None) -> int:
    """Prints the diagnosis of runs; returns 0, or 2 after an error message.

    Examples:
        >>> from torchrl_dceo.cli.runs import diagnose
        >>> diagnose(["/nowhere"])
        2
    """
    from torchrl_dceo.analysis.diagnosis import Diagnosis
    from torchrl_dceo.training.probes import diagnose_run

    parser = argparse.ArgumentParser(
        prog="dceo diagnose",
        description="Explores at ε = 1 with the options of a run's newest checkpoint, and with exact instead of "
        "learned parts: goals per 1,000 steps, distinct states, and the loss per part. Writes diagnosis.csv and "
        "diagnosis.png into the run; with --out also the mean over several runs.",
    )
    parser.add_argument("run_dir", nargs="+", help="the directory of a run in a grid or the cube")
    parser.add_argument("--steps", type=int, default=10_000, help="of a walk (default: 10,000)")
    parser.add_argument("--repeats", type=int, default=10, help="walks of each part (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the walks (default: 0)")
    parser.add_argument(
        "--weighted", action="store_true", help="weight the states by their visits in part (c)"
    )
    parser.add_argument("--out", help="the folder for the mean of several runs")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("steps", "repeats", "seed", "weighted")}
    try:
        each = []
        for run_dir in options.run_dir:
            each.append(diagnose_run(run_dir, **settings))
            _report(each[-1], Path(run_dir), run_dir)
        if len(each) > 1:
            out = None if options.out is None else Path(options.out)
            name = f"{len(each)} runs, one value a run"
            _report(Diagnosis.pooled(each, name), out, name)
    except _MISTAKES as error:
        print(f"dceo diagnose: {error}", file=sys.stderr)
        return 2
    return 0


def _report(diagnosis: Any, folder: Path | None, title: str) -> None:
    from torchrl_dceo.analysis.diagnosis import draw_diagnosis

    print(title, diagnosis.table(), sep="\n")
    print(diagnosis.sentence("goals"), diagnosis.sentence("states"), sep="\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        print(diagnosis.write(folder / "diagnosis.csv"))
        print(draw_diagnosis(diagnosis, folder / "diagnosis.png"), end="\n\n")


_COMMAND = "dceo compare"


def compare_runs(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 if something cannot be read.

    Examples:
        >>> from torchrl_dceo.cli.runs import compare_runs
        >>> compare_runs(["/nowhere"])
        2
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments[:1] == ["collect"]:
            _collect(arguments[1:])
        else:
            _compare(arguments)
    except (FileNotFoundError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _compare(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=_COMMAND,
        description="Figures and tables of a study, written into it. "
        f"`{_COMMAND} collect` puts runs into a study.",
    )
    parser.add_argument("study", help="the folder, laid out as <environment>/<agent>/seed_<k>.csv")
    parser.add_argument("--x", default="frames", help="frames (default), updates or seconds")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="columns of the logs")
    parser.add_argument("--repetitions", type=int, default=2000, help="bootstrap samples")
    options = parser.parse_args(arguments)
    for path in compare(options.study, options.metrics, options.x, options.repetitions):
        print(path)
        if path.suffix == ".md":
            print(f"\n{path.read_text()}")


def _collect(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog=f"{_COMMAND} collect", description="Copies the logs of runs into a study."
    )
    parser.add_argument("run_dir", nargs="+", help="the directory of a recipe's run")
    parser.add_argument(
        "--out", required=True, help="the folder of the environment: <study>/<environment>"
    )
    parser.add_argument("--name", help="the folder of the agent, if not the agent's name")
    options = parser.parse_args(arguments)
    taken: dict[Path, str] = {}
    for run_dir in options.run_dir:
        path = log_in_study(run_dir, options.out, options.name)
        if path in taken:
            raise ValueError(f"{taken[path]} and {run_dir} are of one agent and seed: {path}")
        taken[path] = run_dir
    for run_dir in options.run_dir:
        print(collect_run(run_dir, options.out, options.name))
