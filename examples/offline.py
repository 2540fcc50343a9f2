"""Learn encoder and options from a stored dataset of transitions, without a collector."""

import tempfile
from pathlib import Path

import torch

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import cosine_similarity, exact_eigenfunctions
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import fit, save_options

ENVS, STEPS, UPDATES = 50, 500, 1200

torch.manual_seed(0)
tune_process()
settings = {"room_size": 3, "observation": "xy", "coverage": True, "starts": "anywhere"}
env = make_env("NineRooms", batch_size=ENVS, seed=0, **settings)
agent = make_agent(
    "dceo", env, num_options=4, dimensions=5, lr=1e-3, norm="squared", barrier=2.0, batch_size=128
)


def make_dataset():
    replay = agent.replay  # n-step transitions are built when sampling, with the agent's settings
    return make_replay_buffer(
        3 * ENVS * STEPS,
        num_streams=ENVS,
        observation_keys=["observation"],
        n_steps=replay.n_steps,
        gamma=replay.gamma,
        batch_size=replay.batch_size,
        seed=0,
    )


with tempfile.TemporaryDirectory() as folder:
    # The dataset can come from any policy, here a random walk. It is stored as raw bytes and JSON.
    dataset = make_dataset()
    dataset.extend(env.rollout(STEPS, break_when_any_done=False))
    dataset.dumps(Path(folder) / "dataset")

    # Later, in another process: the encoder and the options learn from it, the main learner does not.
    dataset = make_dataset()
    dataset.loads(Path(folder) / "dataset")
    outputs = fit(agent, dataset, UPDATES, objectives=("laplacian", "reward", "option"))
    print(
        f"{len(dataset)} transitions, {UPDATES} updates: option loss {outputs['loss_option']:.4f}"
    )
    save_options(Path(folder) / "options", agent)

# Compare with the exact eigenfunctions of this environment.
values, exact = exact_eigenfunctions(env.base_env, 5)
states = torch.arange(env.base_env.num_states)
with torch.no_grad():
    learned = agent.objectives["reward"].encoder.module(env.base_env.observe(states)).double()
similarity = cosine_similarity(learned, exact, values).subspace_cosines
print("similarity with the exact eigenfunctions:", *(f"{value:.2f}" for value in similarity))
