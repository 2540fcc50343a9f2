"""An interrupted and resumed run ends with bitwise the same numbers as an uninterrupted one."""

import tempfile
from pathlib import Path

import torch

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train

tune_process()


def power_cut(trainer):
    """A probe is called at each evaluation. This one interrupts the run."""
    if trainer.counters.frames == 2000:
        raise KeyboardInterrupt
    return {}


def run(run_dir, **kwargs):
    """Builds everything from scratch, as a new process would."""
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0, visits="counts")
    agent = make_agent("dceo", env, num_options=4, dimensions=5)
    row = train(
        agent,
        env,
        total_frames=3000,
        update_period=20,
        eval_period=1000,
        log_period=250,
        checkpoint_period=750,
        run_dir=run_dir,
        progress=False,
        **kwargs,
    )
    return agent, row


with tempfile.TemporaryDirectory() as folder:
    whole, row = run(Path(folder) / "whole")
    try:
        run(Path(folder) / "cut", probes=(power_cut,))
    except KeyboardInterrupt:
        print("interrupted at 2000 frames; the last checkpoint is at 1500")
    resumed, again = run(Path(folder) / "cut", resume=True)

pairs = zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
same = all(torch.equal(a, b) for a, b in pairs)
print(f"resumed to {again['frames']} frames, {again['coverage']} states visited")
print("all weights bitwise identical:", same)
del row["seconds"], again["seconds"]
print("last row of the log identical:", row == again)
