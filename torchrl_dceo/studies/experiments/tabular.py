"""The tabular studies: coverage and return of covering eigenoptions with exact eigenvectors.

python -m torchrl_dceo.studies.experiments.tabular coverage --out runs/coverage    # 30 seeds, all methods
python -m torchrl_dceo.studies.experiments.tabular return --out runs/return
python -m torchrl_dceo.studies.experiments.tabular return --search --out runs/return  # settings, on other seeds
python -m torchrl_dceo.studies.experiments.tabular four_rooms --out runs/four_rooms  # steps to visit every state
python -m torchrl_dceo.studies.experiments.tabular cube5 --seeds 5 --out runs/cube5  # the cube within 5 moves
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrl_dceo.analysis.figures import (
    COLOURS,
    colormap,
    describe,
    explain,
    grid_of_axes,
    need,
    new_figure,
    styled,
)
from torchrl_dceo.analysis.figures.maps import show_map, show_marks
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import Layout
from torchrl_dceo.studies.experiments import Parser, run_command
from torchrl_dceo.tabular import METHODS, TabularConfig
from torchrl_dceo.tabular.comparison import (
    Comparison,
    Grid,
    make_environment,
    read_rows,
    report,
    rounded,
    run,
    search,
    write_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COVERAGE", "RETURN", "draw_curves", "draw_visit_maps", "five_moves", "four_rooms"]

MIXING = (0.05, 0.1, 0.5, 0.7)  # μ; the paper's search
OPTION_SETS = (1, 3, 5)  # the paper's search
BONUS_SCALES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # β; the paper's search
DISCOVERY = {"nine_rooms": 8_000, "maze": 8_000, "cube": 2_000}  # T_discovery; ours
_log = logging.getLogger(__name__)


def _coverage_grid(method: str) -> Grid:
    """The paper's search: the share of the method in the behaviour, and the size of the option set."""
    if method == "random":
        return {}
    return {"option_prob": MIXING} | ({"num_options": OPTION_SETS} if method == "ceo" else {})


def _coverage_base(method: str, env: str, found: dict[str, Any]) -> dict[str, Any]:
    """ε = 1, except that the share of ``counts`` is that of its greedy action."""
    eps = 1 - found.get("option_prob", 0.5) if method == "counts" else 1.0
    return {"eps": eps, **found}


COVERAGE = Comparison(
    steps={"nine_rooms": 30_000, "maze": 30_000, "cube": 30_000},
    search_steps={"nine_rooms": 10_000, "maze": 10_000, "cube": 10_000},
    methods=("random", "counts", "ez_greedy", "ceo"),
    coverage=True,
    score=lambda result: result["coverage"].double().mean(0),  # the area under the curve
    grid=_coverage_grid,
    base=_coverage_base,
    # results/tabular_coverage/search.csv
    found={
        "nine_rooms": {
            "counts": {"option_prob": 0.7},
            "ez_greedy": {"option_prob": 0.5},
            "ceo": {"option_prob": 0.05, "num_options": 3},
        },
        "maze": {
            "counts": {"option_prob": 0.7},
            "ez_greedy": {"option_prob": 0.7},
            "ceo": {"option_prob": 0.1, "num_options": 3},
        },
        "cube": {
            "counts": {"option_prob": 0.7},
            "ez_greedy": {"option_prob": 0.05},
            "ceo": {"option_prob": 0.1, "num_options": 5},
        },
    },
)
"""State coverage without reward."""


def _return_grid(method: str) -> Grid:
    """What the paper searches."""
    if method == "random":
        return {}
    if method == "counts":
        return {"bonus_scale": BONUS_SCALES}
    return {"option_prob": MIXING} | ({} if method == "ez_greedy" else {"num_options": OPTION_SETS})


def _return_base(method: str, env: str, found: dict[str, Any]) -> dict[str, Any]:
    """ε = 0.1 and step size 0.1, the paper's; options are discovered with the best μ of the coverage study."""
    settings = {"eps": 0.1, "discovery_steps": DISCOVERY[env], "discovery_prob": 0.05}
    return {**settings, "eval_period": 200 if env == "cube" else 1000, **found}


RETURN = Comparison(
    steps={"nine_rooms": 30_000, "maze": 30_000, "cube": 6_000},
    search_steps={"nine_rooms": 20_000, "maze": 20_000, "cube": 6_000},
    methods=METHODS,
    coverage=False,
    score=lambda result: result["eval_return"].nanmean(0),  # the area under the curve
    grid=_return_grid,
    base=_return_base,
    # results/tabular_return/search.csv
    found={
        "nine_rooms": {
            "counts": {"bonus_scale": 0.0001},
            "ez_greedy": {"option_prob": 0.05},
            "ceo": {"option_prob": 0.7, "num_options": 1},
            "ceo_two_phase": {"option_prob": 0.7, "num_options": 3},
        },
        "maze": {
            "counts": {"bonus_scale": 0.0001},
            "ez_greedy": {"option_prob": 0.05},
            "ceo": {"option_prob": 0.5, "num_options": 1},
            "ceo_two_phase": {"option_prob": 0.7, "num_options": 1},
        },
        "cube": {
            "counts": {"bonus_scale": 0.001},
            "ez_greedy": {"option_prob": 0.7},
            "ceo": {"option_prob": 0.05, "num_options": 1},
            "ceo_two_phase": {"option_prob": 0.5, "num_options": 3},
        },
    },
)
"""Return of the greedy policy."""


def _coverage(options: argparse.Namespace) -> None:
    """State coverage of tabular agents, without reward."""
    visits: dict[tuple[str, str], Tensor] = {}
    if not _run(COVERAGE, options, visits):
        return
    for (env, method), counts in visits.items():
        _keep_visits(options.out, env, method, counts)
    rows = read_rows(options.out / "curves.csv")
    draw_curves(rows, "coverage", "Tabular state coverage").savefig(options.out / "coverage.png")
    kept = read_rows(options.out / "visits.csv")
    for env in ("nine_rooms", "maze"):
        there = [row for row in kept if row["environment"] == env]
        if there:
            grid = make_environment(env, [1], 0, True)
            assert isinstance(grid, GridWorldEnv)
            draw_visit_maps(grid.layout, there).savefig(options.out / f"visits_{env}.png")


def _return(options: argparse.Namespace) -> None:
    """Return of tabular agents: Q-learning with five exploration methods."""
    if _run(RETURN, options):
        rows = read_rows(options.out / "curves.csv")
        title = "Tabular return of the greedy policy"
        figure = draw_curves(rows, "eval_return", title, delays=DISCOVERY)
        figure.savefig(options.out / "return.png")


def _run(
    comparison: Comparison,
    options: argparse.Namespace,
    visits: dict[tuple[str, str], Tensor] | None = None,
) -> bool:
    """Runs the search or the study; returns whether there is something to draw."""
    options.out.mkdir(parents=True, exist_ok=True)
    given = (comparison, options.environments, options.methods)
    if options.search:
        search(*given, options.search_seeds, options.out)
        return False
    if not options.draw:
        report(*given, options.seeds, options.out, length=options.steps, visits=visits)
    return True


def _keep_visits(out: Path, env: str, method: str, counts: Tensor) -> None:
    """Visits after 100 episodes, mean over seeds, as one row of a CSV file per state."""
    old = read_rows(out / "visits.csv")
    rows = [row for row in old if (row["environment"], row["method"]) != (env, method)]
    mean, first = counts.double().mean(0).tolist(), counts[0].tolist()
    rows += [
        {"environment": env, "method": method, "state": i, "first_seed": n, "mean": round(m, 3)}
        for i, (n, m) in enumerate(zip(first, mean, strict=True))
    ]
    write_rows(out / "visits.csv", rows)


def four_rooms(num_seeds: int, out: Path, limit: int = 60_000) -> None:
    """Steps until every state of Four Rooms was visited, with and without slip."""
    rows = []
    for slip in (0.15, 0.0):
        for method, option_prob in (("random", 0.0), ("ceo", 0.1)):
            config = TabularConfig(
                total_steps=limit, eps=1.0, option_prob=option_prob, num_options=5
            )
            result = run(
                COVERAGE,
                method,
                "four_rooms",
                [config] * num_seeds,
                seed=0,
                label=f"four_rooms · {method} · slip {slip}",
                stop_when_covered=True,
                slip=slip,
            )
            steps = result["covered_at"].double()
            steps = torch.where(steps < 0, torch.inf, steps)
            rows.append(
                {
                    "slip": slip,
                    "method": method,
                    "seeds": num_seeds,
                    "median": round(statistics.median(steps.tolist()), 4),
                    "covered": int(steps.isfinite().sum()),
                    "lowest": rounded(steps.min()),
                    "highest": rounded(steps.max()),
                }
            )
            write_rows(out / "four_rooms.csv", rows)
    for walk, ceo in zip(rows[::2], rows[1::2], strict=True):
        _log.info(
            "slip %s: random walk %.0f steps, ceo %.0f: %.1f times faster",
            *(walk["slip"], walk["median"], ceo["median"], walk["median"] / ceo["median"]),
        )


def five_moves(num_seeds: int, out: Path, steps: int = 30_000, rows_kept: int = 10) -> None:
    """Coverage of the cube within five moves with exact options."""
    rows = []
    for method, option_prob in (("random", 0.0), ("ceo", 0.1)):
        config = TabularConfig(total_steps=steps, eps=1.0, option_prob=option_prob, num_options=5)
        label = f"cube5 · {method}"
        result = run(COVERAGE, method, "cube5", [config] * num_seeds, seed=0, label=label)
        frames, seen = result["frames"], result["coverage"].double()
        for i in range(len(frames) // rows_kept - 1, len(frames), len(frames) // rows_kept):
            row = {"method": method, "frames": int(frames[i]), "seeds": num_seeds}
            numbers = {"coverage_mean": seen[i].mean(), "coverage_std": seen[i].std()}
            rows.append({**row, **{name: rounded(value) for name, value in numbers.items()}})
        write_rows(out / "cube5.csv", rows)
        _log.info("%s: %.0f states", method, rows[-1]["coverage_mean"])


def _of_comparison(comparison: Comparison, search_seeds: int) -> Callable[[Parser], None]:
    def add(parser: Parser) -> None:
        envs, methods = list(comparison.steps), list(comparison.methods)
        parser.add_argument("--environments", nargs="+", choices=envs, default=envs)
        parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
        _seeds_and_out(parser, 30)
        parser.add_argument("--steps", type=int, help="of a run, instead of the study's own")
        parser.add_argument("--search", action="store_true", help="search the settings instead")
        parser.add_argument("--search-seeds", type=int, default=search_seeds)
        parser.add_argument("--draw", action="store_true", help="only draw what is there")

    return add


def _seeds_and_out(parser: Parser, seeds: int = 30) -> None:
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")


def _four_rooms(options: argparse.Namespace) -> None:
    """Steps until every state of Four Rooms was visited, with and without slip."""
    options.out.mkdir(parents=True, exist_ok=True)
    four_rooms(options.seeds, options.out)


def _cube5(options: argparse.Namespace) -> None:
    """Coverage of the cube within five moves with exact options."""
    options.out.mkdir(parents=True, exist_ok=True)
    five_moves(options.seeds, options.out)


# The figures, from the CSV files.

_TITLES = {"nine_rooms": "Nine Rooms", "maze": "Maze", "cube": "Cube within 3 moves"}
_STATES = {"nine_rooms": 237, "maze": 91, "cube": 385}
# One colour a method, in every figure.
_LOOKS = {
    "random": (COLOURS["quiet"], "random"),
    "counts": (COLOURS["fourth"], "counts"),
    "ez_greedy": (COLOURS["third"], "εz-greedy"),
    "ceo": (COLOURS["second"], "CEO"),
    "ceo_two_phase": (COLOURS["first"], "CEO, two phases"),
}


@styled
def draw_curves(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    title: str,
    delays: Mapping[str, int] | None = None,
) -> Figure:
    """Mean and standard deviation over seeds of each method, a panel an environment; a discovery phase is shaded."""
    envs = [env for env in _TITLES if any(row["environment"] == env for row in rows)]
    figure = new_figure(3.5 * len(envs) + 1.5, 3.0, title)
    label = {"coverage": "distinct states visited", "eval_return": "return"}[name]
    for axes, env in zip(grid_of_axes(figure, len(envs), len(envs)), envs, strict=True):
        describe(axes, "steps", label if env == envs[0] else "", _TITLES[env])
        for method, (colour, text) in _LOOKS.items():
            points = [
                (
                    float(row["frames"]),
                    float(row[f"{name}_mean"]),
                    float(row[f"{name}_std"] or "nan"),
                )
                for row in rows
                if (row["environment"], row["method"]) == (env, method)
            ]
            delay = (delays or {}).get(env, 0) if method.endswith("two_phase") else 0
            points = [p for p in points if not math.isnan(p[1]) and p[0] > delay]
            if not points:
                continue
            frames, mean, std = zip(*points, strict=True)
            std = tuple(0.0 if math.isnan(s) else s for s in std)  # of a single seed
            low = [max(0.0, m - s) for m, s in zip(mean, std, strict=True)]
            high = [m + s for m, s in zip(mean, std, strict=True)]
            most = 1.0 if name == "eval_return" else float(_STATES[env])
            high = [min(most, value) for value in high]
            front = "ceo" in method
            axes.plot(
                frames, mean, color=colour, label=text, linewidth=1.8, zorder=3 if front else 2
            )
            axes.fill_between(frames, low, high, color=colour, alpha=0.15, linewidth=0)
        if name == "coverage":
            axes.axhline(_STATES[env], color=COLOURS["quiet"], linestyle="--", linewidth=0.8)
            axes.set_ylim(0, _STATES[env] * 1.05)
        else:
            axes.set_ylim(-0.03, 1.05)
        if delays is not None:
            axes.axvspan(0, delays[env], color=COLOURS["first"], alpha=0.08, linewidth=0)
        axes.set_xlim(left=0)
        if env == envs[-1]:
            # Next to the panel, because inside it would overlap the curves.
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    seeds = rows[0].get("seeds", 30)
    note = f"line: mean over {seeds} seed{'s' * (int(seeds) != 1)} · band: standard deviation"
    if delays is not None:
        note += " · " if len(envs) > 1 else "\n"
        note += "shaded: the discovery of the agent in two phases, whose curve starts after it"
    explain(figure, note)
    return figure


@styled
def draw_visit_maps(layout: Layout, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Where each method was in its first 100 episodes: the first seed of each, white to red; grey was never visited."""
    methods = [method for method in _LOOKS if any(row["method"] == method for row in rows)]
    counts = {
        method: torch.tensor([float(row["first_seed"]) for row in rows if row["method"] == method])
        for method in methods
    }
    shape = layout.height / layout.width
    figure = new_figure(
        2.6 * len(methods) + 0.8, 2.6 * shape + 0.8, "State visitation after 100 episodes"
    )
    # Logarithmic and the same for all: on a linear scale only the start would be visible.
    top = max(float(values.max()) for values in counts.values())
    norm = need("matplotlib.colors").LogNorm(vmin=1, vmax=max(10.0, top))
    panels = grid_of_axes(figure, len(methods), len(methods))
    for axes, method in zip(panels, methods, strict=True):
        visits = counts[method].double()
        shown = visits.where(visits > 0, torch.nan)
        image = show_map(axes, layout, shown, cmap=colormap("visits"), norm=norm)
        show_marks(axes, layout, size=8)
        axes.set_title(f"{_LOOKS[method][1]} · {int((visits > 0).sum())} of {len(visits)}", pad=3)
    bar = figure.colorbar(image, ax=panels, shrink=0.85, pad=0.02, label="visits", format="{x:g}")
    bar.outline.set_visible(False)
    return figure


def main() -> None:
    """The command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run_command(
        "torchrl_dceo.studies.experiments.tabular",
        {
            "coverage": (_of_comparison(COVERAGE, 8), _coverage),
            "return": (_of_comparison(RETURN, 5), _return),
            "four_rooms": (_seeds_and_out, _four_rooms),
            "cube5": (_seeds_and_out, _cube5),
        },
    )


if __name__ == "__main__":
    main()
