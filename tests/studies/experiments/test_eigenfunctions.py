"""Experiments with eigenfunctions, small: their command lines, files and figures."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchrl_dceo.studies.experiments import Parser
from torchrl_dceo.studies.experiments.eigenfunctions import _objective_options, main
from torchrl_dceo.studies.experiments.representation import RepresentationConfig

ROOT = Path(__file__).parents[3]


def run(module: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    module = f"torchrl_dceo.studies.experiments.{module}"
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)


def test_the_options_are_the_fields_of_the_config():
    parser = Parser()
    _objective_options(parser)
    given = vars(parser.parse_args(["--out", "x"]))
    fields = {field.name: field.default for field in dataclasses.fields(RepresentationConfig)}
    del fields["objective"], fields["seed"]
    assert {name: given[name] for name in fields} == fields
    assert set(given) - set(fields) == {"objectives", "seeds", "out"}
    assert parser.parse_args(["--out", "x", "--lr", "2e-3"]).lr == 2e-3
    assert parser.parse_args(["--out", "x", "--centre-pixels", "false"]).centre_pixels is False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--map GridRom16", "unknown map 'GridRom16' (did you mean 'GridRoom16'?)"),
        ("--objectives alo", "invalid choice: 'alo'"),
        ("--step 3", "unknown option '--step' (did you mean '--steps'?)"),
        ("--steps 0", "steps must be at least 1, got 0"),
        ("--observation xyz", "invalid choice: 'xyz'"),
        ("--centre-pixels maybe", "must be true or false, got 'maybe'"),
        ("--map S.. --samples 100", "dimensions must not exceed the 3 states"),
    ],
)
def test_a_typo_gets_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    given = ["objectives", *arguments.split(), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["eigenfunctions", *given])
    with pytest.raises(SystemExit) as end:
        main()
    assert sentence in end.value.code and "\n" not in end.value.code


def test_an_unknown_experiment_gets_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["eigenfunctions", "objectivs"])
    with pytest.raises(SystemExit, match=r"got 'objectivs' \(did you mean 'objectives'\?\)"):
        main()


def test_a_map_in_a_file_gives_tables_and_figures(tmp_path):
    (tmp_path / "mine.txt").write_text("S....\n.##..\n.....\n")
    small = "--map mine.txt --objectives allo graph_drawing --seeds 0 --dimensions 3"
    small += " --samples 2000 --steps 4 --batch-size 32 --out run"
    done = run("eigenfunctions", "objectives", *small.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.json",
        "progress.csv",
        "spectrum.csv",
        "summary.csv",
        "eigenfunctions.png",
        "curves.png",
    }
    with (tmp_path / "run" / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    runs = {(row["objective"], row["seed"]) for row in rows}
    assert len(rows) == 8 and len(runs) == 2


def test_the_key_and_the_wall_are_bottlenecks(tmp_path):
    small = "--room-size 3 --steps 2 --samples 2000 --dimensions 3 --out"
    done = run("eigenfunctions", "objects", *small.split(), tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "separation.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Only the exact functions: two steps of learning show nothing.
    apart = {
        (row["environment"], row["function"], row["after"]): float(row["auc"])
        for row in rows
        if row["kind"] == "exact"
    }
    assert apart["EscapeRoom", "f2", "with the key"] == 1.0
    assert apart["ObstructedKey", "f2", "… and key in hand"] == 1.0
    assert apart["ObstructedKey", "f3", "wall broken"] == 1.0
    # Both lie before the key: f_2 hardly knows the wall, so these levels overlap.
    assert 0.5 < apart["ObstructedKey", "f2", "wall broken"] < 0.95
    for name in ("EscapeRoom", "ObstructedKey"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        states = (tmp_path / f"{name}.csv").read_text().splitlines()[1:]
        assert len(states) == int(next(row["states"] for row in rows if row["environment"] == name))


def test_the_evolution_has_six_moments(tmp_path):
    given = ["--env", "GridMaze", "--frames", "1200", "--out", tmp_path]
    done = run("eigenfunctions", "evolution", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "evolution.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["frames"]) for row in rows] == [200, 400, 600, 800, 1000, 1200]
    assert (tmp_path / "evolution.png").stat().st_size > 10_000


@pytest.mark.slow
def test_montezuma_eigenfunctions_draws_the_room(tmp_path):
    small = "--steps 2400 --updates 20 --samples 1000 --dimensions 3 --out"
    done = run("montezuma_eigenfunctions", *small.split(), tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "eigenfunctions.csv").read_text().splitlines()
    assert rows[0] == "x,y,samples,f1,f2,f3" and len(rows) > 50
    assert (tmp_path / "eigenfunctions.png").stat().st_size > 10_000
