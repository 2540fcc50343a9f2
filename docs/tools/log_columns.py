"""Writes ``log_columns.json``: the columns that each agent logs. ``python docs/tools/log_columns.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.probes import OptionProbe, SkillProbe, SpectrumProbe

FILE = Path(__file__).parent / "log_columns.json"


def logged_columns(name: str) -> list[str]:
    """The columns of one agent in a short run with every probe; of numbered ones the first alone."""
    env = make_env("NineRooms", room_size=3, visits="counts")
    fields = AGENTS[name].config.__dataclass_fields__
    two_phases = {"discovery_frames": 24} if "discovery_frames" in fields else {}
    agent = make_agent(name, env, max_grad_norm=1.0, **two_phases)
    config = TrainConfig(
        total_frames=48, learning_starts=8, eval_period=16, log_period=16, progress=False
    )
    trainer = Trainer(
        agent,
        env,
        config,
        eval_env=make_env("NineRooms", room_size=3, batch_size=2, max_steps=5),
        discovery_env=make_env("NineRooms", room_size=3, visits="counts", coverage=True),
        probes=(SpectrumProbe(), OptionProbe(), SkillProbe()),
    )
    return [name for name in trainer.run() if not re.search(r"_(?!1$)\d+$", name)]


if __name__ == "__main__":
    columns = {name: logged_columns(name) for name in AGENTS}
    FILE.write_text(json.dumps(columns, indent=1) + "\n")
