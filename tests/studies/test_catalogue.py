"""Every run that a study declares passes the check of its own program, without being run."""

from __future__ import annotations

import argparse
import functools
import runpy
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from torchrl_dceo.envs.miniworld_headless import why_not
from torchrl_dceo.studies.catalogue import STUDIES
from torchrl_dceo.studies.declaration import Job

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "recipes"))

import launch  # noqa: E402
import representation  # noqa: E402

NAMES = [
    "tabular_coverage",
    "tabular_return",
    "visitation",
    "deep_coverage",
    "two_phase",
    "online",
    "online_vs_two_phase",
    "objectives",
    "non_stationary",
    "objects",
    "eigenfunctions",
    "large_scale",
]


def first_seeds() -> list[Job]:
    """One run for each agent and world of each study and preset: others differ in the seed alone."""
    found = {}
    for study in STUDIES.values():
        for name, preset in study.presets.items():
            for job in preset.jobs():
                found.setdefault((study.name, name, job.world or job.name, job.agent), job)
    return [pytest.param(job, id="-".join(filter(None, key))) for key, job in found.items()]


@functools.cache
def composed(recipe: str, *groups: str) -> DictConfig:
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(launch.CONFIG)):
        return hydra.compose(recipe, list(groups))


def compose(recipe: str, overrides: list[str]) -> dict[str, Any]:
    """What Hydra makes of the overrides, with most of its work done once for each agent."""
    groups = [o for o in overrides if (launch.CONFIG / o.split("=", 1)[0]).is_dir()]
    base = composed(recipe, *groups)
    known, rest = launch._flat_keys(base), [o for o in overrides if o not in groups]
    for override in rest:
        key = override.split("=", 1)[0]
        assert key.startswith("+") != (key.lstrip("+") in known), f"{recipe}: {key}"
    OmegaConf.set_struct(base, False)
    given = OmegaConf.from_dotlist([o.lstrip("+") for o in rest])
    return launch.as_dict(OmegaConf.merge(base, given))


class Checked(Exception):
    """The program has read its arguments."""


@pytest.mark.slow
@pytest.mark.parametrize("job", [case for case in first_seeds() if case.values[0].hydra])
def test_hydra_takes_the_arguments(job, monkeypatch, tmp_path):
    test_the_program_takes_the_arguments(job, monkeypatch, tmp_path, quick=False)


@pytest.mark.parametrize("job", first_seeds())
def test_the_program_takes_the_arguments(job, monkeypatch, tmp_path, quick=True):
    script = ROOT / job.script
    assert script.is_file()
    given = [argument.replace("{folder}", str(tmp_path)) for argument in job.arguments]
    assert any(str(tmp_path) in argument for argument in given)
    if job.hydra:
        recipe = script.stem
        if recipe.startswith("miniworld") and why_not() is not None:
            pytest.skip("the settings of 3D worlds are found where they can be drawn")
        if quick:
            monkeypatch.setattr(launch, "_compose", compose)
        values = representation.check_values if recipe == "representation" else None
        launch.check(given, recipe, values)
        assert f"total_frames={job.frames}" in given or recipe == "representation"
        return
    reads = argparse.ArgumentParser.parse_args

    def parse_and_stop(self, *args):
        options = reads(self, *args)
        if getattr(options, "settings", None) is not None:
            assert (ROOT / options.settings).is_file()
        raise Checked

    def stop():
        raise Checked

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(
        "torchrl_dceo._fast.process.tune_process", stop
    )  # the first thing after a look
    monkeypatch.setattr(sys, "argv", [str(script), *given])
    with pytest.raises(Checked):
        runpy.run_path(str(script), run_name="__main__")


def test_every_study_of_the_paper_is_there():
    assert list(STUDIES) == NAMES
    for study in STUDIES.values():
        assert set(study.presets) == {"paper", "laptop", "smoke"}
        assert study.question.endswith(("?", "."))


@pytest.mark.parametrize(
    ("study", "world", "seeds"),
    [
        ("online", "nine_rooms", 30),
        ("two_phase", "cube", 30),
        ("objects", "escape_room", 30),
        ("large_scale", "four_rooms_3d", 10),
        ("large_scale", "montezuma", 5),
    ],
)
def test_the_papers_seeds(study, world, seeds):
    jobs = [j for j in STUDIES[study].preset("paper").jobs() if j.world == world]
    agents = {job.agent for job in jobs}
    assert len(jobs) == seeds * len(agents) and {job.seed for job in jobs} == set(range(seeds))


def settings(job: Job) -> dict:
    given = [a.replace("{folder}", "/x") for a in job.arguments if not a.startswith("hydra")]
    return compose(Path(job.script).stem, given)


@pytest.mark.parametrize("preset", ["laptop", "smoke"])
@pytest.mark.parametrize("name", ["two_phase", "online_vs_two_phase", "large_scale"])
def test_schedules_fit_into_shorter_runs(name, preset):
    """Discovery ends before the run does, and ε has fallen by then."""
    if name == "large_scale" and why_not() is not None:
        pytest.skip("the settings of 3D worlds are found where they can be drawn")
    seen = set()
    for job in STUDIES[name].preset(preset).jobs():
        if (job.world, job.agent) in seen:
            continue
        seen.add((job.world, job.agent))
        agent = settings(job)["agent"]
        discovery = agent.get("discovery_frames") or 0
        assert discovery < job.frames
        assert discovery + agent["eps_frames"] <= job.frames


def test_reward_free_runs_stay_so():
    for job in STUDIES["deep_coverage"].preset("laptop").jobs():
        if job.seed == 0:
            made = settings(job)
            assert made["env"]["coverage"] is True
            assert made["agent"]["eps_end"] == (0.1 if job.agent == "counts" else 1.0)


def test_the_study_of_the_docs_is_one():
    text = (ROOT / "docs" / "studies.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    jobs = names["STUDY"].preset("laptop").jobs()
    assert {job.agent for job in jobs} == {"both_signs", "one_sign", "ddqn"} and len(jobs) == 15
    for job in jobs[:3]:
        settings(job)
