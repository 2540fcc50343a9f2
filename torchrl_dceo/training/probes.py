"""Metrics of the representation and the options, computed at every evaluation in environments with a state table."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from torchrl_dceo.analysis import (
    cosine_similarity,
    exact_eigenfunctions,
    find_table_env,
    followed_eigenfunctions,
    option_climb,
    reachable_states,
    save_analysis,
    state_values,
)
from torchrl_dceo.analysis.diagnosis import Diagnosis, diagnose
from torchrl_dceo.analysis.figures.birds_eye_figures import save_first_person
from torchrl_dceo.envs import StateCounts, TableEnv, find_transform
from torchrl_dceo.modules import (
    CICReward,
    DIAYNReward,
    EigenReward,
    OptionExplorationModule,
    OptionQValueActor,
    RayleighRitz,
)
from torchrl_dceo.training.agent_io import load_agent
from torchrl_dceo.training.checkpoint import Checkpoints

if TYPE_CHECKING:
    from torchrl_dceo.agents.agent import Agent
    from torchrl_dceo.training.trainer import Trainer

__all__ = [
    "OptionProbe",
    "SkillProbe",
    "SpectrumProbe",
    "diagnose_run",
    "eigen_reward",
    "option_actor",
    "save_run_analysis",
    "visits_in_checkpoint",
]


def eigen_reward(agent: Agent) -> EigenReward | None:
    """Returns the reward of an agent's eigenoptions, with its encoder, or ``None`` if it has none.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.probes import eigen_reward
        >>> env = make_env("NineRooms", room_size=3)
        >>> eigen_reward(make_agent("dceo", env, num_options=2)).num_rewards  # both signs
        4
        >>> eigen_reward(make_agent("ddqn", env)) is None
        True
    """
    return next((m for m in agent.objectives.values() if isinstance(m, EigenReward)), None)


def option_actor(agent: Agent) -> OptionQValueActor | None:
    """Returns the options inside an agent's policy, or ``None`` if it has none.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.probes import option_actor
        >>> option_actor(make_agent("dceo", make_env("NineRooms", room_size=3), num_options=2)).num_options
        4
    """
    return next((m for m in agent.policy.modules() if isinstance(m, OptionQValueActor)), None)


class SpectrumProbe:
    r"""Similarity of the representation to the exact eigenfunctions, and its orthonormality.

    For the outputs that the options follow (and the constant one before them) it reports

    - ``cosine_similarity``: mean :math:`|\cos|` with the eigenfunctions of the uniformly random walk, with uniform
      state weights;
    - ``subspace_similarity``: the same, comparing subspaces for repeated eigenvalues;
    - ``orthogonality_error``: :math:`\|E[f f^\top] - I\|`, the Frobenius norm, with states weighted by
      their visits;
    - ``feature_correlation``: the mean magnitude of the off-diagonal cosines of :math:`E[f f^\top]`: orthogonality
      independent of the scale of f, for objectives that do not fix it.

    With Rayleigh-Ritz, whose functions keep their positions, they are compared in the order of their eigenvalues.

    Args:
        max_states (int): larger environments are skipped, because their exact spectrum takes too long. Default: 2000.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import TrainConfig, Trainer
        >>> from torchrl_dceo.training.probes import SpectrumProbe
        >>> env = make_env("NineRooms", room_size=3)
        >>> trainer = Trainer(make_agent("dceo", env), env, TrainConfig(total_frames=1))
        >>> sorted(SpectrumProbe()(trainer))
        ['cosine_similarity', 'feature_correlation', 'orthogonality_error', 'subspace_similarity']
    """

    def __init__(self, max_states: int = 2000) -> None:
        self.max_states = max_states
        # The last computed spectrum; a changed environment needs a new one.
        self._exact: tuple[Tensor, int, Tensor, Tensor] | None = None

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """Returns the row's further numbers."""
        table_env, reward = find_table_env(trainer.env), eigen_reward(trainer.agent)
        if table_env is None or reward is None or table_env.num_states > self.max_states:
            return {}
        learned = state_values(reward.encoder, table_env).double()[:, _ascending(reward)]
        kept = reachable_states(table_env.next_state, table_env._starts).double()
        d = min(learned.shape[1], int(kept.sum()))
        values, exact = self._spectrum(table_env, d, kept)
        similarity = cosine_similarity(learned[:, :d], exact, values, rho=kept)
        # The options use no others. Cut only here: a repeated eigenvalue may include functions beyond the end.
        used = min(d, reward.num_options + int(reward.skip_first))
        error, correlation = _orthogonality(learned[:, :used], _visits(trainer, table_env, kept))
        return {
            "cosine_similarity": float(similarity.cosines[:used].mean()),
            "subspace_similarity": float(similarity.subspace_cosines[:used].mean()),
            "orthogonality_error": error,
            "feature_correlation": correlation,
        }

    def _spectrum(self, table_env: TableEnv, d: int, kept: Tensor) -> tuple[Tensor, Tensor]:
        cached = self._exact
        if cached is None or cached[1] != d or not torch.equal(cached[0], table_env.next_state):
            cached = (
                table_env.next_state.clone(),
                d,
                *exact_eigenfunctions(table_env, d, rho=kept),
            )
            self._exact = cached
        return cached[2], cached[3]


def _ascending(reward: EigenReward) -> Tensor | slice:
    """The learned functions' order by eigenvalue, if Ritz estimates them; else the given order."""
    for module in reward.encoder.modules():
        if isinstance(module, RayleighRitz) and module.solved:
            return module.eigenvalues.argsort()
    return slice(None)


class OptionProbe:
    r"""How well the eigenoptions climb: see :func:`~torchrl_dceo.analysis.option_climb`.

    - ``option_climb``: the share of the eigenfunction's range that an option's greedy policy climbs, mean over
      options and states; ``option_climb_1``, … for each option;
    - ``option_climb_start``: the same from the starts of the environment (without options that are already at their
      maximum there);
    - ``option_climb_best``: the same for the highest state on the path, which differs if a policy passes the maximum
      without staying there;
    - ``option_return``: the undiscounted return :math:`f_i(\text{end}) - f_i(s)`, mean over options and states.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import TrainConfig, Trainer
        >>> from torchrl_dceo.training.probes import OptionProbe
        >>> env = make_env("NineRooms", room_size=3)
        >>> trainer = Trainer(make_agent("dceo", env, num_options=2), env, TrainConfig(total_frames=1))
        >>> row = OptionProbe()(trainer)
        >>> -1 <= row["option_climb"] <= row["option_climb_best"] <= 1, "option_climb_2" in row
        (True, True)
    """

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """Returns the row's further numbers."""
        table_env, reward = find_table_env(trainer.env), eigen_reward(trainer.agent)
        options = option_actor(trainer.agent)
        if table_env is None or reward is None or options is None:
            return {}
        followed = followed_eigenfunctions(reward, state_values(reward.encoder, table_env))
        climb = option_climb(state_values(options, table_env), followed, table_env.next_state)
        each = climb.mean()
        row = {
            "option_climb": each.nanmean(),
            "option_climb_start": climb.at(table_env._starts).nanmean(),
            "option_climb_best": climb.best_score.nanmean(0).nanmean(),
            "option_return": climb.gain.mean(),
            **{f"option_climb_{i}": value for i, value in enumerate(each, start=1)},
        }
        return {name: float(value) for name, value in row.items() if bool(value.isfinite())}


class SkillProbe:
    r"""The return of the skills of DIAYN and CIC.

    - ``option_return``: the sum of :math:`\log q(z|s') - \log p(z)` over as many steps as an option lasts on average,
      along the greedy policy of skill z, without slips; mean over skills and states. Chance is 0, and with N perfectly
      distinguished skills it is D log N. For CIC, q is that of the contrastive scores of the transition
      (s, s'), and the particle entropy, which is the same for all skills, is not included.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import TrainConfig, Trainer
        >>> from torchrl_dceo.training.probes import SkillProbe
        >>> env = make_env("NineRooms", room_size=3)
        >>> agent = make_agent("diayn", env, num_options=4)
        >>> trainer = Trainer(agent, env, TrainConfig(total_frames=1), discovery_env=env)
        >>> list(SkillProbe()(trainer))
        ['option_return']
    """

    def __call__(self, trainer: Trainer) -> dict[str, float]:
        """Returns the row's further numbers."""
        table_env, options = find_table_env(trainer.env), option_actor(trainer.agent)
        rewards = [
            m for m in trainer.agent.objectives.values() if isinstance(m, DIAYNReward | CICReward)
        ]
        explorer = trainer.agent.explorer
        if table_env is None or options is None or not rewards:
            return {}
        assert isinstance(explorer, OptionExplorationModule)
        following = table_env.next_state.gather(
            1, state_values(options, table_env).argmax(-1)
        )  # [S, N]
        reward = _step_rewards(rewards[0], table_env, following)
        state = torch.arange(len(following), device=following.device).unsqueeze(-1)
        state = state.expand_as(following)
        total = torch.zeros_like(reward)
        for _ in range(round(explorer.option_duration)):
            total = total + reward.gather(0, state)
            state = following.gather(0, state)
        return {"option_return": float(total.mean())}


@torch.no_grad()
def _step_rewards(
    reward: DIAYNReward | CICReward, table_env: TableEnv, following: Tensor
) -> Tensor:
    """The reward of skill z in each state for the step to ``following[s, z]``: ``[S, N]``."""
    if isinstance(reward, DIAYNReward):
        logits = state_values(reward.discriminator, table_env)
        return (logits.log_softmax(-1) + math.log(logits.shape[-1])).gather(0, following)
    features = state_values(reward.encoder, table_env)
    columns = [
        reward.skill_reward(reward.scores(features, features[following[:, z]]))[:, z]
        for z in range(following.shape[1])
    ]
    return torch.stack(columns, -1)


def diagnose_run(
    run_dir: str | os.PathLike[str], env: EnvBase | None = None, **settings: Any
) -> Diagnosis:
    """Diagnoses the options of a run, from its newest checkpoint: see :func:`~torchrl_dceo.analysis.diagnose`.

    Args:
        run_dir (path-like): the directory of a run in a grid or the cube, of an agent whose options follow
            eigenfunctions.
        env (EnvBase, optional): its environment, if the run was started from Python with one of your own.

    Keyword Args:
        **settings: ``steps``, ``repeats``, ``seed`` and ``weighted`` of :func:`~torchrl_dceo.analysis.diagnose`.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import train
        >>> from torchrl_dceo.training.probes import diagnose_run
        >>> env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     _ = train(make_agent("dceo", env), env, total_frames=200, run_dir=run_dir, learning_starts=100,
        ...               progress=False, draw=False)
        ...     diagnosis = diagnose_run(run_dir, steps=100, repeats=2)
        >>> diagnosis.num_states
        93
    """
    learned = load_agent(run_dir, env)
    agent, table_env = learned.agent, find_table_env(learned.env)
    reward, options = eigen_reward(agent), option_actor(agent)
    name = learned.metadata.get("agent", {}).get("name", "this agent")
    if table_env is None:
        raise ValueError(
            f"{run_dir}: only grids and the cube, whose states are a table, can be diagnosed"
        )
    if reward is None or options is None:
        raise ValueError(
            f"{run_dir}: {name} has no options that follow eigenfunctions: diagnose a run of dceo"
        )
    visits = visits_in_checkpoint(Path(run_dir), table_env.num_states)
    if visits is None:
        raise ValueError(
            f"{run_dir}: its checkpoint counts no visits: train with make_env(…, visits='counts')"
        )
    assert isinstance(agent.explorer, OptionExplorationModule)
    return diagnose(
        table_env,
        agent.explorer,
        reward,
        state_values(reward.encoder, table_env),
        state_values(options, table_env),
        visits,
        reward_free=agent.phases[0].reward_free,
        **settings,
    )


def visits_in_checkpoint(run_dir: Path, num_states: int) -> Tensor | None:
    """The visits of each state in training, discovery included."""
    envs = Checkpoints(run_dir / "checkpoints").load_latest()["envs"]
    tables = [
        table
        for name, env in envs.items()
        if name != "eval"
        for key, table in env["transforms"].items()
        if key.endswith("_extra_state") and getattr(table, "shape", ()) == (num_states,)
    ]
    return torch.stack(tables).amax(0) if tables else None


def save_run_analysis(trainer: Trainer, run_dir: Path) -> Path:
    """Stores the data for the figures of a run; see :func:`~torchrl_dceo.analysis.save_analysis`.

    The visits are those of training, discovery included. In a first-person environment the top view and a video of an
    option are stored too, see :func:`~torchrl_dceo.analysis.figures.birds_eye_figures.save_first_person`.

    Args:
        trainer (Trainer): the trainer, during or after its run.
        run_dir (Path): the run's directory.

    Returns:
        Path: the file.
    """
    agent = trainer.agent
    save_first_person(run_dir, trainer.env, eigen_reward(agent), option_actor(agent))
    tables = list(_count_tables(trainer))
    return save_analysis(
        run_dir,
        trainer.env,
        encoder=_encoder(agent),
        option_actor=option_actor(agent),
        counts=torch.stack(tables).sum(0) if tables else None,
        reward=eigen_reward(agent),
    )


def _encoder(agent: Agent) -> TensorDictModuleBase | None:
    reward = eigen_reward(agent)
    return None if reward is None else reward.encoder


def _count_tables(trainer: Trainer) -> Iterator[Tensor]:
    seen = set()
    for env in (trainer.env, trainer.discovery_env):
        counts = None if env is None else find_transform(env, StateCounts)
        # Environments may share one table, which must be added only once.
        if counts is not None and counts.counts.data_ptr() not in seen:
            seen.add(counts.counts.data_ptr())
            yield counts.counts


def _visits(trainer: Trainer, table_env: TableEnv, otherwise: Tensor) -> Tensor:
    tables = [table for table in _count_tables(trainer) if int(table.sum())]
    return torch.stack(tables).sum(0).double() if tables else otherwise


def _orthogonality(f: Tensor, weight: Tensor) -> tuple[float, float]:
    """‖E ffᵀ - I‖, and the mean |cosine| of two different columns under the weight."""
    moments = f.T @ (f * (weight / weight.sum()).unsqueeze(-1))
    error = torch.linalg.matrix_norm(moments - torch.eye(len(moments)).to(moments))
    scale = moments.diagonal().clamp(min=1e-12).sqrt()
    cosines = (moments / scale / scale.unsqueeze(-1)).abs()
    pairs = max(1, len(moments) * (len(moments) - 1))
    return float(error), float((cosines.sum() - cosines.diagonal().sum()) / pairs)
