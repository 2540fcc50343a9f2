"""The tabular studies end to end, small: search, runs with what it found, files, figures."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from torchrl_dceo.studies.experiments.tabular import COVERAGE, RETURN, draw_curves, five_moves
from torchrl_dceo.tabular.comparison import (
    SEARCH_SEED,
    make_environment,
    read_rows,
    report,
    search,
)

RESULTS = Path(__file__).parents[3] / "results"


def small(study):
    return dataclasses.replace(
        study, steps={"maze": 400}, search_steps={"maze": 200}, base=_short(study.base)
    )


def _short(base):
    def shorter(method, env, found):
        settings = base(method, env, found)
        if "discovery_steps" in settings:
            settings["discovery_steps"] = 100
        return {**settings, "eval_period": 100}

    return shorter


@pytest.mark.parametrize(
    ("study", "number"),
    [(COVERAGE, "coverage"), (RETURN, "eval_return")],
    ids=["coverage", "return"],
)
def test_a_study(study, number, tmp_path):
    study, methods = small(study), study.methods
    search(study, ["maze"], methods, 2, tmp_path)
    tried = read_rows(tmp_path / "search.csv")
    settings = json.loads((tmp_path / "settings.json").read_text())["maze"]
    for method in methods:
        own = [row for row in tried if row["method"] == method]
        size = 1
        for values in study.grid(method).values():
            size *= len(values)
        assert len(own) == (size if study.grid(method) else 0)
        if own:  # the best of them was chosen
            best = max(own, key=lambda row: float(row["score_mean"]))
            assert all(float(best[name]) == value for name, value in settings[method].items())
    report(study, ["maze"], methods, 2, tmp_path)
    report(study, ["maze"], methods[:1], 2, tmp_path)  # again: in the place of the first
    rows = read_rows(tmp_path / "curves.csv")
    assert {row["method"] for row in rows} == set(methods)
    assert [int(r["frames"]) for r in rows if r["method"] == methods[0]] == [100, 200, 300, 400]
    assert len(read_rows(tmp_path / "table.csv")) == len(methods)
    delays = None if study.coverage else {"maze": 100}
    figure = draw_curves(rows, number, "A study", delays)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Maze"]
    assert len(figure.axes[0].lines) >= len(methods)


def test_seeds_of_the_search_are_others():
    """The same number of seeds and the same settings, and yet other environments."""
    reported, searched = (make_environment("maze", [4], seed, True) for seed in (0, SEARCH_SEED))
    walks = [env.rollout(60, break_when_any_done=False) for env in (reported, searched)]
    assert not walks[0]["state_id"].equal(walks[1]["state_id"])


def test_the_cube_within_five_moves(tmp_path):
    """Both methods have the same steps; no more states are seen than steps were made, and never fewer than before."""
    five_moves(2, tmp_path, steps=1000, rows_kept=5)
    rows = read_rows(tmp_path / "cube5.csv")
    for method in ("random", "ceo"):
        own = [row for row in rows if row["method"] == method]
        assert [int(row["frames"]) for row in own] == [200, 400, 600, 800, 1000]
        seen = [float(row["coverage_mean"]) for row in own]
        assert seen == sorted(seen) and 9 < seen[0] < seen[-1] <= 1000
        # Without options 54 states lie within two moves of the start: a walk has left them by then.
        assert seen[-1] > 54
    assert make_environment("cube5", [1], 0, True).num_states == 12_224


@pytest.mark.parametrize(
    ("study", "name"), [(COVERAGE, "tabular_coverage"), (RETURN, "tabular_return")]
)
def test_the_settings_are_those_that_the_search_found(study, name):
    assert study.found == json.loads((RESULTS / name / "settings.json").read_text())
    rows = read_rows(RESULTS / name / "search.csv")
    for env, methods in study.found.items():
        for method, found in methods.items():
            own = [row for row in rows if (row["environment"], row["method"]) == (env, method)]
            best = max(own, key=lambda row: float(row["score_mean"]))
            assert all(float(best[key]) == value for key, value in found.items())


def test_the_median_is_that_of_two_seeds(tmp_path):
    """Between them, not the faster one; and infinite as soon as half of the seeds have not covered everything."""
    short = dataclasses.replace(COVERAGE, steps={"maze": 6000})
    report(short, ["maze"], ["ceo"], 2, tmp_path)
    both = float(read_rows(tmp_path / "table.csv")[0]["median_steps_to_cover_all"])
    config = short.config("ceo", "maze", 6000, short.found["maze"]["ceo"])
    from torchrl_dceo.tabular.comparison import run

    covered = run(short, "ceo", "maze", [config] * 2, seed=0, label="")["covered_at"].tolist()
    assert min(covered) > 0 and covered[0] != covered[1] and both == sum(covered) / 2
    report(short, ["maze"], ["random"], 2, tmp_path)
    rows = {row["method"]: row for row in read_rows(tmp_path / "table.csv")}
    assert math.isinf(float(rows["random"]["median_steps_to_cover_all"]))
