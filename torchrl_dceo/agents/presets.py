"""The settings of the paper and of the authors' code that differ from ours, with their origin.

``ours`` are the defaults of :mod:`torchrl_dceo.agents.configs`. ``paper`` are the values of the paper; those that it
does not give follow the authors' later research code. ``authors`` is their code: the one released with the paper on
Atari, the later one elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

from torchrl_dceo._fast.convolution import bf16_is_native
from torchrl_dceo.agents.configs import OptionAgentConfig
from torchrl_dceo.agents.dceo import DCOConfig
from torchrl_dceo.agents.rainbow import RainbowConfig
from torchrl_dceo.envs import EnvKind
from torchrl_dceo.settings import choices

__all__ = [
    "PRESETS",
    "SPEEDS",
    "UNTOUCHED",
    "PresetSettings",
    "preset_settings",
    "speed_settings",
]

Preset = Literal["ours", "paper", "authors"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
"""The names of presets."""


@dataclass(frozen=True)
class Share:
    """A number of frames as a share of a run."""

    of_run: float

    def frames(self, total: int) -> int:
        """The number of frames in a run of ``total`` frames."""
        return max(1, round(self.of_run * total))


# Frames of the authors' runs, for agents built without a run: 1M, in 3D 5M; on Atari ε has its own number of frames.
_TOTAL_FRAMES = {"grid": 1_000_000, "cube": 1_000_000, "3d": 5_000_000, "atari": 50_000_000}

_LEARNER: dict[Preset, dict[str, Any]] = {
    "paper": {
        "lr": 1e-4,  # the paper
        "main_adam_eps": 1e-8,  # Adam as usual
        "target_tau": None,  # DQN's hard updates
        "target_period": 1000,  # 1000 frames, their later code; an update per frame
        "eps_frames": Share(0.1),  # their later code
        "centre_pixels": False,  # the paper: images as they are
        "replay_measure": "visits",  # DQN's replay: uniform over transitions
    },
    "authors": {
        "lr": 1e-4,  # the paper
        "main_adam_eps": 1e-8,  # their later code
        "target_tau": None,  # their later code
        "target_period": 250,  # 1000 frames at an update per 4; their later code
        "eps_frames": Share(0.1),  # their later code
        "centre_pixels": False,  # their later code
        "replay_measure": "visits",  # both codes
    },
}
# Of agents with options or repeated actions, in the paper and both codes: ε decays from the start, and is the
# probability of exploring at a decision, where no option is active.
_EXPLORING: dict[str, Any] = {
    "eps_after_reward": False,
    "eps_patience": None,
    "eps_per": "decision",
}
_OPTIONS: dict[Preset, dict[str, Any]] = {
    "paper": {
        "num_options": 10,  # the paper
        "option_eps": 0.0,  # Algorithm 1: greedy in the option's values
        "option_gamma": None,  # the paper has one γ
        "independent_networks": True,  # Algorithm 1: one network per option
        "one_step_options": False,  # the paper: n steps
    },
    "authors": {
        "num_options": 10,  # their later code
        "options_across_episodes": True,  # both codes
        "option_gamma": None,  # both codes
        "independent_networks": True,  # both codes
        "options_per_update": 3,  # their later code
        "one_step_options": False,  # both codes
    },
}
_LAPLACIAN: dict[Preset, dict[str, Any]] = {
    "paper": {
        "dimensions": 20,  # both codes
        "norm": "squared",  # the paper's Eq. 2
        "barrier": 0.5,  # both codes: 1 against a smoothness without the factor ½
        "estimator": "split",  # Eq. 2 with independent states, as both codes have it
        "skip_first": True,  # the paper: the first that is not constant
        "signs": "+",  # the paper
        "reward_mode": "discounted",  # the paper's Eq. 1 over n steps
        "direction": 0.0,  # the paper: options are chosen uniformly
        "termination": None,  # Algorithm 1: 1/D
    },
    "authors": {
        "dimensions": 20,  # both codes
        "norm": "log1p",  # both codes
        "barrier": 0.5,  # both codes: 1 against a smoothness without the factor ½
        "estimator": "split",  # both codes
        "pair_steps": 5,  # both codes: n
        "skip_first": False,  # both codes: from the constant one on
        "signs": "+",  # both codes
        "reward_mode": "telescoped",  # both codes
        "direction": 0.0,  # both codes: options are chosen uniformly
        "termination": None,  # both codes: 1/D
    },
}
_RUN: dict[Preset, dict[str, Any]] = {
    "paper": {
        "num_envs": 1,  # Algorithm 1
        "update_period": 1,  # Algorithm 1: at every step
    },
    "authors": {
        "num_envs": 1,  # both codes
        "update_period": 4,  # both codes
    },
}
# The settings of one kind of environment: of the agent, the run and the environment.
_OF_KIND: dict[tuple[Preset, EnvKind], dict[str, dict[str, Any]]] = {
    ("paper", "cube"): {"agent": {"num_options": 3}},  # the paper
    ("authors", "cube"): {
        "agent": {"target_period": 1000},  # 1000 frames
        "run": {"update_period": 1},  # their later code
    },
    ("paper", "3d"): {
        "agent": {"num_options": 5, "target_period": 40_000},  # the paper; their later code
        "run": {"learning_starts": 50_000},  # their later code
        "env": {"obs_width": 80, "obs_height": 60},  # the authors' environments
    },
    ("authors", "3d"): {
        "agent": {
            "num_options": 5,  # the paper
            "lr": 2.5e-4,  # their later code
            "representation_lr": 1e-4,  # their later code
            "optimizer": "rmsprop",  # their later code
            "target_period": 10_000,  # 40,000 frames at an update per 4; their later code
        },
        "run": {"learning_starts": 50_000},  # their later code
        "env": {"obs_width": 80, "obs_height": 60},  # the authors' environments
    },
    ("paper", "atari"): {"agent": {"num_options": 5}},  # the paper
    ("authors", "atari"): {"agent": {"num_options": 5}},  # the paper
}
# Rainbow's defaults are the authors' for Atari, also for the preset of the paper (agents/rainbow.py).
_RAINBOW: dict[Preset, dict[str, Any]] = {
    "paper": {},
    "authors": {
        "options_per_update": 1,  # their released code
        "option_target_period": 40_000,  # 8000 updates of an option, of which one of five learns
        "option_eps_init": 1.0,  # their released code: decays with ε
        "eps_start": 20_000,  # their released code: their warm-up
        "pair_steps": 3,  # n
        "laplacian_uniform": False,  # their released code
        "weighted_mean": True,  # their released code
    },
}
_REPLAY_ROWS = 1_000_000  # both codes

_UNTOUCHED = """
adam_eps gamma n_steps batch_size loss_function eps_init eps_end
network bf16 main_learner table_step_size option_prob discovery_frames
main_pixel_scale max_grad_norm rmsprop_eps average_options laplacian_measure ritz_period replay_by_action replay_newest
least_barrier observation_hash
selection encoder option_reward objective option_duration
num_atoms v_max prioritized priority_alpha priority_beta
bonus_scale rnd_features observation_clip predictor_fraction zeta_exponent max_duration
cic_features temperature negatives entropy_scale skill_scale num_neighbours
"""
UNTOUCHED = frozenset(_UNTOUCHED.split())
"""The fields that no preset sets, by line: equal in the paper and the codes; set by the environment's recipe; ours, off
by default or not used by the presets; custom parts, and the paper's by default; Rainbow's; bonuses'; skills'."""


class PresetSettings(NamedTuple):
    """What :func:`preset_settings` returns: settings of the agent, of the run, and of the environment."""

    agent: dict[str, Any]
    run: dict[str, Any]
    env: dict[str, Any]


def preset_settings(
    preset: str, config: type, kind: EnvKind = "grid", *, total_frames: int | None = None
) -> PresetSettings:
    """Returns the settings in which a preset differs from ours, for an agent and a kind of environment.

    Settings that an environment's recipe takes from the paper (μ, the network in 3D, the cube's table) are left out.

    Args:
        preset (str): ``"ours"``, which has none, ``"paper"`` or ``"authors"``.
        config (type): the agent's config dataclass.
        kind (str): ``"grid"``, ``"cube"``, ``"3d"`` or ``"atari"``; see :func:`~torchrl_dceo.envs.env_kind`.

    Keyword Args:
        total_frames (int, optional): frames of the run; ε decays over a tenth of them. Default: the authors' number.

    Examples:
        >>> from torchrl_dceo.agents.dceo import DCEOConfig
        >>> from torchrl_dceo.agents.presets import preset_settings
        >>> paper = preset_settings("paper", DCEOConfig, "cube")
        >>> paper.agent["num_options"], paper.agent["lr"], paper.run["update_period"]
        (3, 0.0001, 1)
        >>> preset_settings("peper", DCEOConfig)
        Traceback (most recent call last):
        ValueError: unknown preset 'peper' (did you mean 'paper'?); choose from ours, paper, authors
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {choices(preset, PRESETS)}")
    if preset == "ours":
        return PresetSettings({}, {}, {})
    name: Preset = "paper" if preset == "paper" else "authors"
    total = _TOTAL_FRAMES[kind] if total_frames is None else total_frames
    rainbow = kind == "atari" or issubclass(config, RainbowConfig)
    agent: dict[str, Any] = dict(_EXPLORING) if rainbow else _LEARNER[name] | _EXPLORING
    if issubclass(config, OptionAgentConfig):
        agent |= _OPTIONS[name]
    agent |= _LAPLACIAN[name]
    own: Mapping[str, dict[str, Any]] = _OF_KIND.get((name, kind), {})
    agent |= own.get("agent", {})
    if rainbow:
        agent |= _RAINBOW[name]
    if issubclass(config, DCOConfig):
        # The method has one eigenfunction, and an option to each end.
        its_own = ("num_options", "signs", "options_per_update")
        agent = {key: value for key, value in agent.items() if key not in its_own}
    known = {field.name for field in fields(config)}
    run: dict[str, Any] = {}
    if kind != "atari":  # its recipe already has the authors'
        rows = _REPLAY_ROWS if total > _REPLAY_ROWS else None  # None: the whole run
        run = {**_RUN[name], "replay_capacity": rows, **own.get("run", {})}
    return PresetSettings(
        {
            key: value.frames(total) if isinstance(value, Share) else value
            for key, value in agent.items()
            if key in known
        },
        run,
        dict(own.get("env", {})),
    )


Speed = Literal["default", "throughput"]
SPEEDS: tuple[Speed, ...] = get_args(Speed)
"""The names of speeds."""

# Ours: fewer, larger updates with more environments, tuned on Nine Rooms for frames per second of one core without more
# frames to learn (results/speed). As many samples per frame as in the default; bf16 where the CPU supports it.
_THROUGHPUT = PresetSettings(
    agent={"batch_size": 64, "lr": 1e-3, "target_tau": 0.02, "bf16": bf16_is_native()},
    run={"num_envs": 32, "update_period": 16},
    env={},
)


def speed_settings(speed: str) -> PresetSettings:
    """Returns the settings in which a speed differs from the default: ``speed=throughput`` of the command line.

    Args:
        speed (str): ``"default"``, which has none, or ``"throughput"``: more frames per second of one core for agents
            on small images.

    Examples:
        >>> from torchrl_dceo.agents import make_agent, speed_settings
        >>> from torchrl_dceo.envs import make_env
        >>> speed = speed_settings("throughput")
        >>> env = make_env("NineRooms", batch_size=speed.run["num_envs"])
        >>> agent = make_agent("dceo", env, **speed.agent)
        >>> agent.replay.batch_size
        64
        >>> speed_settings("fast")
        Traceback (most recent call last):
        ValueError: unknown speed 'fast' (did you mean 'default'?); choose from default, throughput
    """
    if speed not in SPEEDS:
        raise ValueError(f"unknown speed {choices(speed, SPEEDS)}")
    return _THROUGHPUT if speed == "throughput" else PresetSettings({}, {}, {})
