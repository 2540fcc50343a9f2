"""Comparison of learned and exact eigenfunctions: objectives, objects, and during an agent's training.

python -m torchrl_dceo.studies.experiments.eigenfunctions objectives --map GridRoom16 --out runs/f
python -m torchrl_dceo.studies.experiments.eigenfunctions objects --out runs/objects
python -m torchrl_dceo.studies.experiments.eigenfunctions evolution --env NineRooms --out runs/evolution
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import logging
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions, find_table_env, state_values
from torchrl_dceo.analysis.figures.curves import draw_similarity_curves
from torchrl_dceo.analysis.figures.maps import draw_comparison
from torchrl_dceo.analysis.figures.positions import (
    draw_object_eigenfunctions,
    object_layout,
    separation,
)
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.studies.experiments import Parser, find_table, object_table, run_command
from torchrl_dceo.studies.experiments.representation import (
    OBJECTIVES,
    LearnedRepresentation,
    RepresentationConfig,
    learn_representation,
)
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.logging import CSVLog
from torchrl_dceo.training.probes import SpectrumProbe, eigen_reward

__all__ = ["compare_objectives", "draw_evolution", "object_eigenfunctions"]

_log = logging.getLogger(__name__)
_LABELS = {
    "graph_drawing": "graph drawing",
    "generalized": "generalized",
    "generalized_log1p": "generalized, log1p",
    "allo": "ALLO",
    "omm": "OMM",
}
_DETERMINED = 0.95  # |cos| of the data's optimum with an eigenfunction that the data hold
Results = dict[str, list[LearnedRepresentation]]


def compare_objectives(configs: Sequence[RepresentationConfig], out: Path) -> Results:
    """Learns every representation, writes the logs, and draws learned and exact eigenfunctions.

    Writes ``progress.csv`` (all logs), ``spectrum.csv`` (the exact eigenvalues), ``summary.csv`` (by objective),
    ``config.json``, ``curves.png`` and, of a map, ``eigenfunctions.png``.

    Args:
        configs (sequence of RepresentationConfig): the runs, all on one map.
        out (Path): the folder of the files.

    Returns:
        dict of str to list of LearnedRepresentation: the runs of each objective.
    """
    out.mkdir(parents=True, exist_ok=True)
    described = [dataclasses.asdict(config) for config in configs]
    (out / "config.json").write_text(json.dumps(described, indent=1) + "\n")
    (out / "progress.csv").unlink(missing_ok=True)
    log = CSVLog(out / "progress.csv")
    results: Results = {}
    for config in configs:
        names = {"objective": config.objective, "seed": config.seed}

        def write(row: Mapping[str, float], names: Mapping[str, Any] = names) -> None:
            log.write({**names, **_rounded(row)})

        result = learn_representation(config, report=write)
        results.setdefault(config.objective, []).append(result)
        if result.ritz is not None:
            _log.info("\n%s, seed %d\n%s", _LABELS[config.objective], config.seed, describe(result))
        # Drawn and summarised after every run, so that an interrupted experiment has results.
        _summarise(out, results)
        _draw(out, results)
    return results


def describe(result: LearnedRepresentation) -> str:
    """A summary in plain text: eigenvalues, cosines, and functions that the data do not determine."""
    last, d = result.rows[-1], len(result.eigenvalues)
    lines = ["  i  exact λ   λ of the pairs      learned λ  |cos|  of the data's optimum"]
    errors = [0.0] * d if result.ritz is None else result.ritz.standard_errors.tolist()
    for i in range(d):
        pairs = "" if result.data is None else f"{abs(float(result.data.eigenvalues[i])):.5f}"
        lines.append(
            f"{i + 1:3d}  {abs(float(result.eigenvalues[i])):.5f}  {pairs:>14s}  "
            f"{abs(last[f'ritz_eigenvalue_{i + 1}']):.5f} ± {errors[i]:.5f}  "
            f"{last[f'ritz_cosine_{i + 1}']:.4f}  {float(result.data_cosines[i]):.4f}"
        )
    lines.append(
        f"mean |cos| {last['ritz_cosine']:.4f}; with eigenvalues within 10 % as one subspace "
        f"{last['ritz_cluster_cosine']:.4f}, worst {last['ritz_cluster_worst']:.4f}, "
        f"the data's own limit {last.get('data_cluster_limit', math.nan):.4f}; before Rayleigh-Ritz "
        f"{last['cosine']:.4f}, span {last['span']:.4f}"
    )
    parts = int((result.eigenvalues.abs() < 1e-9).sum())
    if parts > 1:
        lines.append(
            f"{parts} parts of the map are not joined by any path: the eigenvalue 0 repeats, and its functions are any "
            "that are constant on each part"
        )
    for first, end in result.clusters:
        inside = range(first, min(end, d))
        open_ones = [i + 1 for i in inside if result.data_cosines[i] < _DETERMINED]
        if open_ones:
            where = f"{first + 1} to {end}" if end - first > 1 else f"{first + 1}"
            beyond = f" ({end - d} of them beyond d = {d})" if end > d else ""
            lines.append(
                f"not determined by the data one by one: {open_ones}, of the subspace {where}{beyond}"
            )
    return "\n".join(lines)


def _rounded(row: Mapping[str, float]) -> dict[str, float]:
    return {key: value if key == "step" else float(f"{value:.5g}") for key, value in row.items()}


def _summarise(out: Path, results: Results) -> None:
    first = next(iter(results.values()))[0]
    gaps = first.eigenvalues.diff().tolist()
    with (out / "spectrum.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["i", "eigenvalue", "gap_to_next", "of_the_pairs", "learned", "cosine"])
        for i, value in enumerate(first.eigenvalues.tolist()):
            gap = f"{gaps[i]:.6f}" if i < len(gaps) else ""
            pairs = "" if first.data is None else f"{abs(float(first.data.eigenvalues[i])):.6f}"
            last = first.rows[-1]
            found = [last.get(f"ritz_eigenvalue_{i + 1}"), last.get(f"ritz_cosine_{i + 1}")]
            learned = ["" if each is None else f"{abs(each):.6f}" for each in found]
            writer.writerow([i + 1, f"{abs(value):.6f}", gap, pairs, *learned])
    with (out / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        columns = (
            "ritz_cosine",
            "ritz_cluster_cosine",
            "data_cluster_limit",
            "cosine",
            "subspace_cosine",
            "span",
            "orthogonality_error",
            "data_limit",
        )
        head = [f"{column}_{kind}" for column in columns for kind in ("mean", "worst")]
        writer.writerow(["objective", "seeds", *head, "seconds_mean"])
        for name, each in results.items():
            ends = [result.rows[-1] for result in each]
            row: list[Any] = [name, len(ends)]
            for column in columns:
                values = [end[column] for end in ends if column in end]
                worst = max if column == "orthogonality_error" else min
                row += [f"{_mean(values):.4f}", f"{worst(values):.4f}"] if values else ["", ""]
            writer.writerow([*row, f"{_mean([end['seconds'] for end in ends]):.1f}"])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _draw(out: Path, results: Results) -> None:
    first = next(iter(results.values()))[0]
    learned: dict[str, Tensor] = {_LABELS[k]: each[0].learned for k, each in results.items()}
    if isinstance(first.env, GridWorldEnv):  # other environments have no map
        figure = draw_comparison(first.env.layout, first.exact, learned, first.eigenvalues)
        figure.savefig(out / "eigenfunctions.png")
    curves = {
        _LABELS[name]: [
            {key: [row[key] for row in result.rows] for key in ("step", "cosine", "span")}
            for result in each
        ]
        for name, each in results.items()
    }
    draw_similarity_curves(curves).savefig(out / "curves.png")


def _objectives(options: argparse.Namespace) -> None:
    """Learned against exact eigenfunctions: every objective with every seed."""
    find_table(options.map)
    given = {name: getattr(options, name) for name in _SHARED}
    runs = [(objective, seed) for objective in options.objectives for seed in options.seeds]
    configs = [RepresentationConfig(**given, objective=o, seed=s) for o, s in runs]
    compare_objectives(configs, options.out)


_SHARED = {
    field.name: field
    for field in dataclasses.fields(RepresentationConfig)
    if field.name not in ("objective", "seed")
}


def _objective_options(parser: Parser) -> None:
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=["graph_drawing"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")
    hints = typing.get_type_hints(RepresentationConfig)
    for name, field in _SHARED.items():
        read, choices = _reader(hints[name])
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=read, choices=choices, default=field.default
        )


def _reader(hint: Any) -> tuple[Callable[[str], Any], Sequence[str] | None]:
    """The argparse settings for a field's type."""
    if typing.get_origin(hint) is typing.Literal:
        return str, typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(hint) if one is not type(None)]
        words = [word for one in kinds for word in typing.get_args(one)]
        kind = next(one for one in kinds if not typing.get_args(one))
        return (lambda text: text if text in words else kind(text)) if words else kind, None
    return (_boolean if hint is bool else hint), None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return text.lower() == "true"


# The compared states of the objects, as in state ids: phase (0 no key, 1 key in hand, 2 door open) + 4 for a broken
# wall.
_OBJECT_SETTINGS = {"EscapeRoom": {}, "ObstructedKey": {"num_breakable": 1}}
_FUNCTIONS = {"EscapeRoom": (2,), "ObstructedKey": (2, 3)}  # f_2 knows the key, f_3 the wall
_EVENTS = {
    "EscapeRoom": (("without the key", 0), ("with the key", 1), ("… and the door open", 2)),
    "ObstructedKey": (("wall whole", 0), ("wall broken", 4), ("… and key in hand", 5)),
}


def _over_positions(f: Tensor, occurs: Tensor, positions: int, objects: int) -> Tensor:
    """A function of states at every position of the agent, for one state of the objects; NaN if it does not occur."""
    part = slice(objects * positions, (objects + 1) * positions)
    return f[part].where(occurs[part], torch.nan)


def _objects(options: argparse.Namespace) -> None:
    """Eigenfunctions of environments with objects over all positions, before and after a key is taken."""
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for name in options.environments:
        config = RepresentationConfig(
            observation="pixels",
            objective=options.objective,
            dimensions=options.dimensions,
            steps=options.steps,
            samples=options.samples,
            seed=options.seed,
        )
        rows += object_eigenfunctions(name, options.room_size, config, options.out)
        with (options.out / "separation.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _object_options(parser: Parser) -> None:
    known = list(_EVENTS)
    parser.add_argument("--environments", nargs="+", default=known, choices=known)
    parser.add_argument("--room-size", type=int, default=5)
    parser.add_argument("--objective", default="allo", choices=OBJECTIVES)
    parser.add_argument("--dimensions", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")


def object_eigenfunctions(
    name: str, room_size: int, config: RepresentationConfig, out: Path
) -> list[dict[str, object]]:
    """Learns the representation of one environment from pixels of random walks through all its states.

    Draws its first non-constant eigenfunctions before and after the key was taken (the wall broken), next to the exact
    ones and an image of the environment, and measures how well their level separates the two: the key is a bottleneck
    of the state space.

    Args:
        name (str): ``"EscapeRoom"`` or ``"ObstructedKey"``.
        room_size (int): cells of a room along one side.
        config (RepresentationConfig): of the representation.
        out (Path): the folder of ``<name>.csv`` and ``<name>.png``.

    Returns:
        list of dict: the rows of ``separation.csv``.
    """
    settings: dict[str, Any] = {"room_size": room_size, **_OBJECT_SETTINGS[name]}
    object_env, env = object_table(name, **settings)
    table = env.table
    result = learn_representation(
        config,
        env=env,
        report=lambda row: _log.info(
            "%s step %d: |cos| of f2 %.3f", name, row["step"], row["ritz_cosine_2"]
        ),
    )
    panels, rows, columns = [], [], {}
    for i in _FUNCTIONS[name]:
        exact, learned = result.exact[:, i - 1], result.learned[:, i - 1]
        # The sign is free: low where the agent starts.
        exact = exact * -float(exact[table.start].sign())
        learned = learned * float((learned * exact).sum().sign())
        cosine = result.rows[-1][f"ritz_cosine_{i}"]
        for kind, f in (("exact", exact), ("learned", learned)):
            columns[f"{kind}_f{i}"] = f
            maps = [
                (label, _over_positions(f, table.occurs, object_env.num_positions, objects))
                for label, objects in _EVENTS[name]
            ]
            panels.append((f"{kind} $f_{i}$", maps))
            for label, values in maps[1:]:
                first = maps[0][1]
                apart = separation(first[first.isfinite()], values[values.isfinite()])
                row = {
                    "environment": name,
                    "function": f"f{i}",
                    "kind": kind,
                    "before": maps[0][0],
                    "after": label,
                    "auc": f"{apart.auc:.4f}",
                    "distance": f"{apart.distance:.2f}",
                    "own_side_of_zero": f"{apart.opposite:.4f}",
                    "mean_before": f"{float(first.nanmean()):.3f}",
                    "mean_after": f"{float(values.nanmean()):.3f}",
                    "cosine": f"{cosine:.4f}" if kind == "learned" else "",
                    "eigenvalue": f"{float(result.eigenvalues[i - 1]):.6f}",
                    "states": int(table.occurs.sum()),
                }
                rows.append(row)
                _log.info(str(row))
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["state_id", *columns])
        for state in table.occurs.nonzero().flatten().tolist():
            writer.writerow([state, *(f"{float(f[state]):.5f}" for f in columns.values())])
    shown = make_env(name, **settings)
    shown.reset()
    spaced = "".join(f" {c}" if c.isupper() else c for c in name).strip().capitalize()
    figure = draw_object_eigenfunctions(
        object_layout(object_env.rows),
        panels,
        shown.base_env.render(),
        f"{spaced}: eigenfunctions over the agent's positions",
        f"rooms of {room_size} x {room_size}, {int(table.occurs.sum())} states · learned from pixels "
        f"({config.objective}, {config.samples:,} random steps)",
    )
    figure.savefig(out / f"{name}.png")
    return rows


_EVOLUTION: dict[str, dict[str, Any]] = {
    "NineRooms": {"starts": [(17, 1)], "goals": [(1, 17)]},
    "GridMaze": {},
}
_MOMENTS = 6  # of a run that are drawn


def draw_evolution(
    name: str, out: Path, *, frames: int = 48_000, seed: int = 0, **laplacian: Any
) -> None:
    """Draws f_2 … f_11 at six times of an online DCEO run from the bottom left, below the exact eigenfunctions.

    Args:
        name (str): ``"NineRooms"`` or ``"GridMaze"``.
        out (Path): the folder of ``evolution.png`` and of ``evolution.csv``, the similarities.

    Keyword Args:
        frames (int): of the run. Default: ``48_000``.
        seed (int): of the run. Default: ``0``.
        **laplacian: settings of the agent's representation.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    env = make_env(name, seed=seed, visits="counts", **_EVOLUTION[name])
    agent = make_agent("dceo", env, eps_frames=frames, dimensions=11, lr=5e-4, **laplacian)
    grid, reward, snapshots = find_table_env(env), eigen_reward(agent), {}
    assert isinstance(grid, GridWorldEnv) and reward is not None
    (out / "evolution.csv").unlink(missing_ok=True)
    log = CSVLog(out / "evolution.csv")
    measure = SpectrumProbe()

    def snapshot(trainer: Trainer) -> dict[str, float]:
        done = trainer.counters.frames
        snapshots[f"{done // 1000}k"] = state_values(reward.encoder, grid).double()
        row = measure(trainer)
        log.write({"frames": done, **{key: round(value, 4) for key, value in row.items()}})
        return row

    period = frames // _MOMENTS
    train = TrainConfig(total_frames=frames, eval_period=period, log_period=period, seed=seed)
    Trainer(agent, env, train, probes=(snapshot,)).run()
    values, exact = exact_eigenfunctions(grid, 11)
    figure = draw_comparison(
        grid.layout,
        exact[:, 1:],
        {moment: functions[:, 1:] for moment, functions in snapshots.items()},
        values[1:],
        titles=[f"$e_{{{i}}}$" for i in range(2, 12)],
        title=f"{name}: eigenfunctions while DCEO learns (rows: frames)",
    )
    figure.savefig(out / "evolution.png")


def _evolution(options: argparse.Namespace) -> None:
    """How the eigenfunctions evolve while an online DCEO agent learns, starting at the bottom left."""
    draw_evolution(
        options.env,
        options.out,
        frames=options.frames,
        seed=options.seed,
        norm=options.norm,
        barrier=options.barrier,
        centre_pixels=options.centre,
    )


def _evolution_options(parser: Parser) -> None:
    parser.add_argument("--env", choices=list(_EVOLUTION), default="NineRooms")
    parser.add_argument("--frames", type=int, default=48_000)
    parser.add_argument("--norm", choices=["squared", "log1p"], default="squared")
    parser.add_argument("--barrier", type=float, default=0.1)
    parser.add_argument("--centre", type=_boolean, default=True, help="without the mean image")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")


def main() -> None:
    """The command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run_command(
        "torchrl_dceo.studies.experiments.eigenfunctions",
        {
            "objectives": (_objective_options, _objectives),
            "objects": (_object_options, _objects),
            "evolution": (_evolution_options, _evolution),
        },
    )


if __name__ == "__main__":
    main()
