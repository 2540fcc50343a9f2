"""How fast tabular agents cover the states of a world, without reward.

python recipes/tabular_coverage.py            # 30 seeds, all worlds and methods: curves, table, heat maps
python recipes/tabular_coverage.py --search   # the settings that it uses, found on other seeds
python recipes/tabular_coverage.py --four-rooms  # steps to visit every state of Four Rooms
python recipes/tabular_coverage.py --cube5 --seeds 5  # exact options on the cube within 5 moves, beside the deep ones
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tabular_figures import draw_curves, draw_visit_maps
from tabular_study import (
    MIXING,
    OPTION_SETS,
    Grid,
    Study,
    make_world,
    read_rows,
    report,
    rounded,
    run,
    search,
    study_parser,
    write_rows,
)
from torch import Tensor

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.tabular import TabularConfig

METHODS = ("random", "counts", "ez_greedy", "ceo")


def grid(method: str) -> Grid:
    """What the paper searches: the share of the method in the behaviour, and the size of the option set."""
    if method == "random":
        return {}
    return {"option_prob": MIXING} | ({"num_options": OPTION_SETS} if method == "ceo" else {})


def base(method: str, found: dict[str, Any]) -> dict[str, Any]:
    """ε = 1, except that the share of ``counts`` is that of its greedy action."""
    found = {name: value for name, value in found.items() if name != "world"}
    eps = 1 - found.get("option_prob", 0.5) if method == "counts" else 1.0
    return {"eps": eps, **found}


STUDY = Study(
    name="tabular_coverage",
    steps={"nine_rooms": 30_000, "maze": 30_000, "cube": 30_000},
    search_steps={"nine_rooms": 10_000, "maze": 10_000, "cube": 10_000},
    methods=METHODS,
    coverage=True,
    score=lambda result: result["coverage"].double().mean(0),  # the area under the curve
    grid=grid,
    base=base,
)


def four_rooms(num_seeds: int, out: Path, limit: int = 60_000) -> None:
    """Steps until every state of Four Rooms was visited, with and without slip."""
    rows = []
    for slip in (0.15, 0.0):
        for method, option_prob in (("random", 0.0), ("ceo", 0.1)):
            config = TabularConfig(
                total_steps=limit, eps=1.0, option_prob=option_prob, num_options=5
            )
            result = run(
                STUDY,
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
                    "median": rounded(steps.quantile(0.5, interpolation="midpoint")),
                    "covered": int(steps.isfinite().sum()),
                    "lowest": rounded(steps.min()),
                    "highest": rounded(steps.max()),
                }
            )
            write_rows(out / "four_rooms.csv", rows)
    for walk, ceo in zip(rows[::2], rows[1::2], strict=True):
        ratio = walk["median"] / ceo["median"]
        print(
            f"slip {walk['slip']}: random walk {walk['median']:.0f} steps, "
            f"ceo {ceo['median']:.0f}: {ratio:.1f} times faster"
        )


def five_moves(num_seeds: int, out: Path, steps: int = 30_000, rows_kept: int = 10) -> None:
    """Coverage of the cube within five moves, where deep options do not pay: do exact ones?"""
    rows = []
    for method, option_prob in (("random", 0.0), ("ceo", 0.1)):
        config = TabularConfig(total_steps=steps, eps=1.0, option_prob=option_prob, num_options=5)
        label = f"cube5 · {method}"
        result = run(STUDY, method, "cube5", [config] * num_seeds, seed=0, label=label)
        frames, seen = result["frames"], result["coverage"].double()
        for i in range(len(frames) // rows_kept - 1, len(frames), len(frames) // rows_kept):
            row = {"method": method, "frames": int(frames[i]), "seeds": num_seeds}
            numbers = {"coverage_mean": seen[i].mean(), "coverage_std": seen[i].std()}
            rows.append({**row, **{name: rounded(value) for name, value in numbers.items()}})
        write_rows(out / "cube5.csv", rows)
        print(f"{method}: {rows[-1]['coverage_mean']:.0f} states", flush=True)


def main() -> None:
    """The command line."""
    parser = study_parser(STUDY, __doc__, search_seeds=8)
    parser.add_argument("--four-rooms", action="store_true", help="only the steps to cover it")
    parser.add_argument("--cube5", action="store_true", help="only the cube within 5 moves")
    given = parser.parse_args()
    tune_process()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.search:
        search(STUDY, given.worlds, given.methods, given.search_seeds, given.out)
        return
    if given.four_rooms:
        four_rooms(given.seeds, given.out)
        return
    if given.cube5:
        five_moves(given.seeds, given.out, given.steps or 30_000)
        return
    if not given.draw:
        visits: dict[tuple[str, str], Tensor] = {}
        report(
            STUDY,
            given.worlds,
            given.methods,
            given.seeds,
            given.out,
            visits,
            length=given.steps,
            found_in=given.settings,
        )
        for world, method in visits:
            keep_visits(given.out, world, method, visits[world, method])
    draw(given.out)


def keep_visits(out: Path, world: str, method: str, counts: Tensor) -> None:
    """Visits after 100 episodes, mean over seeds, as a row of a CSV file a state."""
    old = read_rows(out / "visits.csv")
    rows = [row for row in old if (row["world"], row["method"]) != (world, method)]
    mean = counts.double().mean(0).tolist()
    first = counts[0].tolist()
    rows += [
        {"world": world, "method": method, "state": i, "first_seed": n, "mean": round(m, 3)}
        for i, (n, m) in enumerate(zip(first, mean, strict=True))
    ]
    write_rows(out / "visits.csv", rows)


def draw(out: Path) -> None:
    """The figures, from the files."""
    rows = read_rows(out / "curves.csv")
    draw_curves(rows, "coverage", "Tabular state coverage").savefig(out / "coverage.png")
    visits = read_rows(out / "visits.csv")
    for world in ("nine_rooms", "maze"):
        there = [row for row in visits if row["world"] == world]
        if there:
            layout = make_world(world, [1], 0, True).layout  # type: ignore[attr-defined]
            draw_visit_maps(layout, there).savefig(out / f"visits_{world}.png")


if __name__ == "__main__":
    main()
