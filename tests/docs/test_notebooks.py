"""The notebooks run from top to bottom, and are stored as they ran."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra docs")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra docs")
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def run(path: Path, tmp_path: Path, *, short: bool):
    notebook = nbformat.read(path, as_version=4)
    if short:
        for cell in notebook.cells:
            cell.source = re.sub(r"range\(\d_\d{3}\)", "range(20)", cell.source)
            cell.source = re.sub(r"total_frames=\d+_\d{3}", "total_frames=1_500", cell.source)
            cell.source = cell.source.replace("eval_period=3_000", "eval_period=1_000")
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    return client.execute()


def test_both_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["components", "quickstart"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_short_form_runs(path, tmp_path):
    run(path, tmp_path, short=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_as_written(path, tmp_path):
    done = run(path, tmp_path, short=False)
    said = "".join(
        output.get("text", "") for cell in done.cells for output in cell.get("outputs", ())
    )
    if path.stem == "components":  # options reach further than single random actions
        random, options = (
            int(n) for n in re.findall(r"(?:random actions|options): (\d+) of", said)
        )
        assert options > random


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_and_hold_no_error(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    assert outputs and not [o for o in outputs if o.output_type == "error"]
    assert not [o for o in outputs if o.get("name") == "stderr"]
    assert path.stat().st_size < 1_000_000
