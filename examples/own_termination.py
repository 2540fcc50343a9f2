"""Your own termination and selection of options: end where no action is clearly the best, prefer high values."""

import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train


def undecided(tensordict, option):
    """The probability that each environment's option ends before this step: 1 where its two best actions are close."""
    values = tensordict["option_action_value"]
    own = values.gather(-2, option.clamp(min=0)[:, None, None].expand(-1, 1, values.shape[-1]))
    best, second = own.squeeze(-2).topk(2).values.unbind(-1)
    return (best - second < 0.005).float().clamp(min=1 / 50)


def most_to_gain(tensordict, num_options):
    """The option to start in each environment: drawn by a softmax over the best value of each option."""
    best = tensordict["option_action_value"].amax(-1)
    return torch.distributions.Categorical(logits=best).sample()


torch.manual_seed(0)
env = make_env("NineRooms", room_size=3, batch_size=16, seed=0, visits="counts")
lengths = {}
for name, parts in {
    "1/D": {"termination": None},  # the paper's
    "top": {},  # the default: 1/D, and where no action gains anything
    "own": {"termination": undecided, "selection": most_to_gain},
}.items():
    # On the command line: agent.termination=own_termination:undecided agent.selection=own_termination:most_to_gain
    agent = make_agent("dceo", env, num_options=2, eps_end=1.0, **parts)
    row = train(
        agent,
        env,
        total_frames=4000,
        learning_starts=500,
        update_period=8,
        log_period=4000,
        progress=False,
    )
    lengths[name] = row["option_share"] * 4000 / row["option_starts"]
    print(f"{name}: an option takes {lengths[name]:.1f} steps, {row['coverage']} states visited")
