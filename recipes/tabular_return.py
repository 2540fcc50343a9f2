"""How fast tabular agents learn to reach a goal: Q-learning with five ways to explore.

python recipes/tabular_return.py            # 30 seeds, all worlds and methods: curves and table
python recipes/tabular_return.py --search   # the settings that it uses, found on other seeds
"""

from __future__ import annotations

from typing import Any

from tabular_figures import draw_curves
from tabular_study import (
    BONUS_SCALES,
    MIXING,
    OPTION_SETS,
    Grid,
    Study,
    read_rows,
    report,
    search,
    study_parser,
)

from torchrl_dceo._fast.process import tune_process
from torchrl_dceo.tabular import METHODS

DISCOVERY = {"nine_rooms": 8_000, "maze": 8_000, "cube": 2_000}  # T_discovery; ours


def grid(method: str) -> Grid:
    """What the paper searches."""
    if method == "random":
        return {}
    if method == "counts":
        return {"bonus_scale": BONUS_SCALES}
    return {"option_prob": MIXING} | ({} if method == "ez_greedy" else {"num_options": OPTION_SETS})


def base(method: str, found: dict[str, Any]) -> dict[str, Any]:
    """ε = 0.1 and step size 0.1, the paper's; options are discovered with the best μ of the coverage study."""
    world = found.pop("world")
    settings = {"eps": 0.1, "discovery_steps": DISCOVERY[world], "discovery_prob": 0.05}
    return {**settings, "eval_period": 200 if world == "cube" else 1000, **found}


STUDY = Study(
    name="tabular_return",
    steps={"nine_rooms": 30_000, "maze": 30_000, "cube": 6_000},
    search_steps={"nine_rooms": 20_000, "maze": 20_000, "cube": 6_000},
    methods=METHODS,
    coverage=False,
    score=lambda result: result["eval_return"].nanmean(0),  # the area under the curve
    grid=grid,
    base=base,
)


def main() -> None:
    """The command line."""
    given = study_parser(STUDY, __doc__, search_seeds=5).parse_args()
    tune_process()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.search:
        search(STUDY, given.worlds, given.methods, given.search_seeds, given.out)
        return
    if not given.draw:
        report(
            STUDY,
            given.worlds,
            given.methods,
            given.seeds,
            given.out,
            length=given.steps,
            found_in=given.settings,
        )
    rows = read_rows(given.out / "curves.csv")
    title = "Tabular return of the greedy policy"
    figure = draw_curves(rows, "eval_return", title, delays=DISCOVERY)
    figure.savefig(given.out / "return.png")


if __name__ == "__main__":
    main()
