"""The glossary names every column that an agent can write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.probes import OptionProbe, SkillProbe, SpectrumProbe

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "metrics.md"
COLUMNS = Path(__file__).parents[2] / "docs" / "tools" / "log_columns.json"


def glossary() -> set[str]:
    """Every name that begins an entry."""
    entries = re.findall(r"^- (`\w+`(?:, `\w+`)*)", PAGE.read_text(), re.MULTILINE)
    return {name for entry in entries for name in re.findall(r"`(\w+)`", entry)}


@pytest.mark.parametrize("name", AGENTS)
def test_every_column_is_in_the_glossary(name):
    settings = {"room_size": 3, "visits": "counts"}
    env = make_env("NineRooms", **settings)
    agent = make_agent(
        name,
        env,
        max_grad_norm=1.0,
        **(
            {"discovery_frames": 24}
            if "discovery_frames" in AGENTS[name].config.__dataclass_fields__
            else {}
        ),
    )
    trainer = Trainer(
        agent,
        env,
        TrainConfig(
            total_frames=48, learning_starts=8, eval_period=16, log_period=16, progress=False
        ),
        eval_env=make_env("NineRooms", room_size=3, batch_size=2, max_steps=5),
        discovery_env=make_env("NineRooms", coverage=True, **settings),
        probes=(SpectrumProbe(), OptionProbe(), SkillProbe()),
    )
    columns = set(trainer.run())
    numbered = {column for column in columns if re.fullmatch(r"option_(climb|starts)_\d+", column)}
    assert "loss_main" in columns
    assert columns - numbered <= glossary()
    # What the page of the agent lists: `python docs/tools/log_columns.py` writes it anew.
    listed = set(json.loads(COLUMNS.read_text())[name])
    assert columns - numbered == {c for c in listed if not re.search(r"_1$", c)}
    own = {
        "counts": "bonus",
        "rnd": "bonus",
        "ddqn": "eps",
        "ez_greedy": "option_share",
        "rainbow": "main_value",
    }
    assert own.get(name, "option_return") in columns


def test_pictures_of_the_page_are_there():
    pictures = re.findall(r"\]\((\.\./images/[^)]+)\)", PAGE.read_text())
    assert pictures and all((PAGE.parent / picture).is_file() for picture in pictures)
