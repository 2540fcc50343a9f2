"""Every run that a study declares passes the check of its own program, without being run."""

from __future__ import annotations

import argparse
import copy
import functools
import runpy
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from torchrl_dceo.agents import AGENTS, preset_settings
from torchrl_dceo.cli.config import CONF, _flat_keys, as_dict, compose, parse
from torchrl_dceo.envs.miniworld_headless import why_not
from torchrl_dceo.settings import defaults
from torchrl_dceo.studies.catalogue import STUDIES
from torchrl_dceo.studies.catalogue.deep import REVERSED
from torchrl_dceo.studies.declaration import Grid, Job
from torchrl_dceo.studies.experiments import Parser
from torchrl_dceo.training.config import RunConfig, TrainConfig

ROOT = Path(__file__).parents[2]

NAMES = [
    "tabular_coverage",
    "tabular_return",
    "visitation",
    "deep_coverage",
    "two_phase",
    "online",
    "online_vs_two_phase",
    "objectives",
    "cube",
    "non_stationary",
    "objects",
    "eigenfunctions",
    "large_scale",
    "ablation",
    "exploration",
]


def first_seeds() -> list[Job]:
    """One run for each agent and environment of each study and preset: others differ in the seed alone."""
    found = {}
    for study in STUDIES.values():
        for name, preset in study.presets.items():
            for job in preset.jobs():
                found.setdefault((study.name, name, job.environment or job.name, job.agent), job)
    return [pytest.param(job, id="-".join(filter(None, key))) for key, job in found.items()]


@functools.cache
def composed(env: str, agent: str) -> DictConfig:
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return hydra.compose("train", [env, agent])


def arguments(job: Job) -> list[str]:
    command, *given = job.arguments
    assert (job.program, command) == ("torchrl_dceo", "train")
    return [a.replace("{folder}", "/x") for a in given if not a.startswith("hydra")]


def settings(job: Job) -> dict[str, Any]:
    """What training makes of a run's arguments, with most of Hydra's work done once for each agent."""
    env, agent, *rest = arguments(job)
    base, known = copy.deepcopy(composed(env, agent)), _flat_keys(composed(env, agent))
    for override in rest:
        key, _, value = override.lstrip("+").partition("=")
        if not key.startswith("env."):  # parse knows those
            assert key in known, f"{env} {agent}: {key}"
        with open_dict(base):
            OmegaConf.update(base, key, OmegaConf.from_dotlist([f"x={value}"]).x)
    made = as_dict(base, rest)
    parse(made)
    return made


class Checked(Exception):
    """The program has read its arguments."""


@pytest.mark.parametrize("job", [case for case in first_seeds() if case.values[0].hydra])
def test_training_takes_the_arguments(job):
    if job.arguments[1].startswith("env=miniworld") and why_not() is not None:
        pytest.skip("the settings of 3D environments are found where they can be drawn")
    assert settings(job)["total_frames"] == job.frames
    assert f"total_frames={job.frames}" in job.arguments
    assert "run_dir={folder}" in job.arguments and "resume={folder}" in job.continued


@pytest.mark.slow
@pytest.mark.parametrize("job", [case for case in first_seeds() if case.values[0].hydra])
def test_hydra_takes_the_arguments(job):
    if job.arguments[1].startswith("env=miniworld") and why_not() is not None:
        pytest.skip("the settings of 3D environments are found where they can be drawn")
    assert compose(arguments(job)) == settings(job)


@pytest.mark.parametrize("job", [case for case in first_seeds() if not case.values[0].hydra])
def test_an_experiment_takes_the_arguments(job, monkeypatch, tmp_path):
    given = [argument.replace("{folder}", str(tmp_path)) for argument in job.arguments]
    assert any(str(tmp_path) in argument for argument in given)
    reads = argparse.ArgumentParser.parse_known_args

    def parse_and_stop(self, *args):
        _, rest = reads(self, *args)
        assert isinstance(self, Parser) and not rest
        raise Checked

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [job.program, *given])
    with pytest.raises(Checked):
        runpy.run_module(job.program, run_name="__main__")


def test_nothing_outside_the_package_is_run():
    """A wheel alone does every study: no path of the repository is left in the package."""
    for study in STUDIES.values():
        for preset in study.presets.values():
            assert all(job.program.startswith("torchrl_dceo") for job in preset.jobs())
    for path in (ROOT / "torchrl_dceo").rglob("*.py"):
        text = path.read_text()
        assert "recipes/" not in text and "examples/" not in text, path


def test_every_study_of_the_paper_is_there():
    assert list(STUDIES) == NAMES
    for study in STUDIES.values():
        assert set(study.presets) == {"paper", "laptop", "smoke"}
        assert study.question.endswith(("?", "."))


@pytest.mark.parametrize(
    ("study", "environment", "seeds"),
    [
        ("online", "nine_rooms", 30),
        ("two_phase", "cube", 30),
        ("objects", "escape_room", 30),
        ("large_scale", "four_rooms_3d", 10),
        ("large_scale", "montezuma", 5),
    ],
)
def test_the_papers_seeds(study, environment, seeds):
    jobs = [j for j in STUDIES[study].preset("paper").jobs() if j.environment == environment]
    agents = {job.agent for job in jobs}
    assert len(jobs) == seeds * len(agents) and {job.seed for job in jobs} == set(range(seeds))


@pytest.mark.parametrize("preset", ["laptop", "smoke"])
@pytest.mark.parametrize("name", ["two_phase", "online_vs_two_phase", "cube", "large_scale"])
def test_schedules_fit_into_shorter_runs(name, preset):
    """Discovery ends before the run does, and ε has fallen by then."""
    if name == "large_scale" and why_not() is not None:
        pytest.skip("the settings of 3D environments are found where they can be drawn")
    seen = set()
    for job in STUDIES[name].preset(preset).jobs():
        if (job.environment, job.agent) in seen:
            continue
        seen.add((job.environment, job.agent))
        agent = settings(job)["agent"]
        discovery = agent.get("discovery_frames") or 0
        assert discovery < job.frames
        if agent["eps_end"] == 1.0:
            continue  # without reward
        assert discovery + agent["eps_frames"] <= job.frames


def test_reward_free_runs_stay_so():
    for job in STUDIES["deep_coverage"].preset("laptop").jobs():
        if job.seed == 0:
            made = settings(job)
            assert made["env"]["coverage"] is True
            assert made["agent"]["eps_end"] == (0.1 if job.agent == "counts" else 1.0)


def test_the_study_of_the_docs_is_one():
    text = (ROOT / "docs" / "how_to" / "studies.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    jobs = names["STUDY"].preset("laptop").jobs()
    assert {job.agent for job in jobs} == {"both_signs", "one_sign", "ddqn"} and len(jobs) == 15
    for job in jobs[:3]:
        settings(job)


def test_the_ablation_takes_back_every_deviation_from_the_paper():
    """One row for each field in which the paper differs from our defaults, and a row of the whole paper."""
    paper = preset_settings("paper", AGENTS["dceo"].config, total_frames=150_000)
    ours = {**defaults(AGENTS["dceo"].config), **defaults(TrainConfig), **defaults(RunConfig)}
    differs = {name for name, value in (paper.agent | paper.run).items() if ours[name] != value}
    taken_back = {given.split("=")[0] for row in REVERSED.values() for given in row}
    assert {name.removeprefix("agent.") for name in taken_back} == differs
    jobs = [j for j in STUDIES["ablation"].preset("laptop").jobs() if j.environment == "maze"]
    assert {job.seed for job in jobs} == {1000, 1001, 1002}
    made = {job.agent: settings(job) for job in jobs if job.seed == 1000}
    assert set(made) == {"ours", "paper", *REVERSED}
    for name, row in made.items():
        assert row["update_period"] == (1 if name == "an_update_a_step" else 8)
        assert row["total_frames"] == 150_000
    for name, given in REVERSED.items():
        changed = {
            key
            for key in made["ours"]["agent"]
            if made["ours"]["agent"][key] != made[name]["agent"][key]
        }
        own = {
            key.split("=")[0].removeprefix("agent.") for key in given if key.startswith("agent.")
        }
        assert changed == own
    whole = made["paper"]["agent"]
    for name, value in paper.agent.items():
        expected = {"target_period": 125, "eps_frames": 15_000}.get(name, value)
        assert whole[name] == expected


def test_exploration_is_shown_on_fresh_seeds_with_one_configuration():
    grids = [p for p in STUDIES["exploration"].preset("laptop").parts if isinstance(p, Grid)]
    assert min(seed for grid in grids for seed in grid.seed_list) == 1000
    for env, frames in (("nine_rooms", 200_000), ("sixteen_rooms", 150_000)):
        grid = next(grid for grid in grids if grid.env == env and grid.total_frames == frames)
        assert list(grid.methods) == [
            "dceo",
            "ddqn",
            "counts",
            "rnd",
            "dco",
        ]  # no setting of their own
        assert "stop_after_solved=3" in grid.overrides


def test_the_large_runs_have_the_authors_schedule():
    for grid in STUDIES["large_scale"].preset("paper").parts[:2]:
        assert f"agent.eps_frames={grid.total_frames // 10}" in grid.overrides
