"""The command line of the representation study."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

RECIPES = Path(__file__).parent.parent.parent / "recipes"
sys.path.insert(0, str(RECIPES))

import representation as recipe  # noqa: E402

from torchrl_dceo.cli.config import compose  # noqa: E402
from torchrl_dceo.studies.experiments.representation import RepresentationConfig  # noqa: E402


def test_the_yaml_has_exactly_the_fields_of_the_dataclass():
    settings = compose([], "representation")
    fields = {field.name for field in dataclasses.fields(RepresentationConfig)}
    assert set(settings) - {"objectives", "seeds", "run_dir"} == fields - {"objective", "seed"}
    recipe.check_values(settings)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["map=GridRom16"], "representation: unknown map 'GridRom16' (did you mean 'GridRoom16'?)"),
        (["objectives=[alo]"], "representation: objectives holds 'alo' (did you mean 'allo'?)"),
        (["step=3"], "representation: unknown setting 'step' (did you mean 'steps'?)"),
        (["steps=0"], "representation: steps must be at least 1, got 0"),
        (["observation=xyz"], "representation: observation is 'xyz' (did you mean 'xy'?)"),
        (["seeds=[]"], "representation: objectives and seeds must each hold at least one entry"),
    ],
)
def test_a_typo_gets_one_sentence(arguments, sentence):
    with pytest.raises(SystemExit) as exit_info:
        recipe.check(arguments)
    message = str(exit_info.value)
    assert message.startswith(sentence) and "\n" not in message


def test_a_map_in_a_file_gives_tables_and_figures(tmp_path):
    (tmp_path / "mine.txt").write_text("S....\n.##..\n.....\n")
    arguments = ["map=mine.txt", "objectives=[allo,graph_drawing]", "seeds=[0]", "dimensions=3"]
    arguments += ["samples=2000", "steps=4", "batch_size=32", f"run_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-W", "ignore", str(RECIPES / "representation.py"), *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names - {".hydra", "representation.log"} == {
        "config.yaml",
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


def test_what_only_the_map_can_tell_is_one_sentence_too(tmp_path):
    settings = compose(["map=S..", "samples=100", f"run_dir={tmp_path}"], "representation")
    with pytest.raises(SystemExit, match="dimensions must not exceed the 3 states"):
        recipe.run(OmegaConf.create(settings))
