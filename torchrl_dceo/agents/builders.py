"""Builders of an agent's parts, from an environment's specs and the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.envs import EnvBase, Transform
from torchrl.objectives import HardUpdate, LossModule
from torchrl.objectives.utils import TargetNetUpdater

from torchrl_dceo._fast.actors import DistributionalGreedyActor, GreedyActor, PolicySequence
from torchrl_dceo._fast.losses import CategoricalDQNLoss, DoubleDQNLoss
from torchrl_dceo._fast.steps import DirectAdam, DirectSoftUpdate, OptionAdam, TrainedRows
from torchrl_dceo.agents.agent import Agent, Explorer, Objective, Phase, ReplaySettings
from torchrl_dceo.agents.configs import (
    LearnerConfig,
    OptionAgentConfig,
    OptionConfig,
    reward_patience,
)
from torchrl_dceo.agents.tabular_learner import AdamWithTables, TabularQLoss, make_table_learner
from torchrl_dceo.modules import (
    Centred,
    CentringFit,
    DirectedSelection,
    DuelingDistribution,
    EigenReward,
    OptionDistributionalQValueActor,
    OptionExplorationModule,
    OptionQValueActor,
    averaged,
)
from torchrl_dceo.modules.distributional import make_support
from torchrl_dceo.modules.networks import (
    ConvNet,
    MultiHeadNet,
    StackedNet,
    grid_net,
    mlp_net,
    nature_net,
    small_nature_net,
)
from torchrl_dceo.objectives import (
    OptionDistributionalDQNLoss,
    OptionDQNLoss,
)
from torchrl_dceo.settings import imported

__all__ = [
    "make_categorical_learner",
    "make_categorical_options",
]


class _Atoms(Protocol):
    num_atoms: int
    v_max: float


def make_categorical_learner(
    make_network: Callable[[int], nn.Module],
    config: _Atoms,
    *,
    gamma: float,
    key: str,
    spec: TensorSpec,
) -> tuple[DistributionalGreedyActor, CategoricalDQNLoss]:
    """The greedy actor and its double C51 loss.

    Args:
        make_network (callable): a network from its number of outputs.
        config: has ``num_atoms`` and ``v_max``.

    Keyword Args:
        gamma (float): the discount.
        key (str): the input entry of the network.
        spec (TensorSpec): the action spec.
    """
    dueling = DuelingDistribution(config.num_atoms, spec.space.n)
    actor = DistributionalGreedyActor(
        nn.Sequential(make_network(dueling.num_inputs), dueling),
        support=make_support(config.num_atoms, config.v_max),
        in_keys=[key],
        spec=spec,
    )
    return actor, CategoricalDQNLoss(actor, gamma=gamma)


def make_categorical_options(
    make_heads: Callable[[int], nn.Module],
    num_options: int,
    config: _Atoms,
    *,
    gamma: float,
    key: str,
    spec: TensorSpec,
    **loss_settings: Any,
) -> tuple[OptionDistributionalQValueActor, OptionDistributionalDQNLoss]:
    """The option set and its double C51 loss.

    Args:
        make_heads (callable): networks of all options from the number of outputs of each.
        num_options (int): N.
        config: has ``num_atoms`` and ``v_max``.

    Keyword Args:
        gamma (float): the options' discount.
        key (str): the input entry of the networks.
        spec (TensorSpec): the action spec.
        loss_settings: those of :class:`~torchrl_dceo.objectives.OptionDistributionalDQNLoss`.
    """
    dueling = DuelingDistribution(config.num_atoms, spec.space.n)
    actor = OptionDistributionalQValueActor(
        nn.Sequential(make_heads(dueling.num_inputs), dueling),
        num_options=num_options,
        support=make_support(config.num_atoms, config.v_max),
        in_keys=[key],
        spec=spec,
    )
    loss = OptionDistributionalDQNLoss(actor, **loss_settings)
    loss.make_value_estimator(gamma=gamma)
    return actor, loss


NetworkFn = Callable[[int], nn.Module]


_LARGE_IMAGE = 64  # pixels a side


def observation_key(env: EnvBase) -> str:
    """The input entry of the networks: ``pixels`` or ``observation``."""
    for key in ("pixels", "observation"):
        if key in env.observation_spec.keys():
            return key
    raise KeyError(
        f"agents read 'pixels' or 'observation'; this environment has {sorted(env.observation_spec.keys())}"
    )


def make_network_fn(
    env: EnvBase, config: LearnerConfig, kind: str | Callable[..., nn.Module] | None = None
) -> NetworkFn:
    """A function that builds networks for the environment's observation from their number of outputs.

    Args:
        env (EnvBase): the environment.
        config (LearnerConfig): its ``network`` and ``bf16``.
        kind (str or callable, optional): overrides ``network``.
    """
    make = _network_fn(env, config.network if kind is None else kind)
    if not config.bf16:
        return make

    def in_bf16(out: int) -> nn.Module:
        network = make(out)
        for module in network.modules():
            if isinstance(module, ConvNet):
                module.bf16 = True
        return network

    return in_bf16


def _network_fn(env: EnvBase, kind: str | Callable[..., nn.Module]) -> NetworkFn:
    shape = env.observation_spec[observation_key(env)].shape[len(env.batch_size) :]
    if kind == "auto":
        kind = "mlp" if len(shape) != 3 else "grid" if min(shape[1:]) < _LARGE_IMAGE else "nature"
    if kind == "mlp":
        size = shape.numel()
        flatten = [nn.Flatten(-len(shape))] if len(shape) > 1 else []
        return lambda out: nn.Sequential(*flatten, *mlp_net(size, out))
    nets: dict[Any, Callable[..., nn.Module]] = {
        "grid": grid_net,
        "nature": nature_net,
        "nature_small": small_nature_net,
    }
    if kind in nets:
        return lambda out: nets[kind](shape, out)
    if isinstance(kind, str) and ":" not in kind:
        raise ValueError(
            "network must be one of 'auto', 'grid', 'nature', 'nature_small', 'mlp', or one's own as "
            f"'package.module:function', got {kind!r}"
        )
    own = imported(kind)
    return lambda out: _checked_network(own(shape, out))


def _checked_network(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise ValueError(
                f"recurrent networks ({type(module).__name__}) are not supported: supported are networks of one "
                "observation, which may be a stack of frames (frame_stack of make_env('gym', …))"
            )
    return network


def centred(
    network: nn.Module, env: EnvBase, config: LearnerConfig, *, scale: float | None = None
) -> nn.Module:
    """The network on centred images, if observations are images and ``centre_pixels`` is set."""
    shape = env.observation_spec[observation_key(env)].shape[len(env.batch_size) :]
    return (
        Centred(network, shape, scale=scale)
        if config.centre_pixels and len(shape) == 3
        else network
    )


def brightest(env: EnvBase) -> float:
    """The largest value of the environment's images: 255, or less for images of indices (MiniGrid: up to 10)."""
    space = env.observation_spec[observation_key(env)].space
    return 255.0 if space is None else float(space.high.max())


def make_main_learner(
    env: EnvBase, config: LearnerConfig
) -> tuple[TensorDictModuleBase, LossModule]:
    """The greedy actor and its loss: Double DQN on values or, for Rainbow, on their distributions, or a table."""
    if config.main_learner == "table":
        return make_table_learner(env, config)
    spec = env.action_spec_unbatched
    key = observation_key(env)

    def network(size: int) -> nn.Module:
        # Not divided by its deviation: what lets a network tell neighbours apart at once keeps it from carrying a rare
        # reward over to them.
        net = make_network_fn(env, config)(size)
        return centred(net, env, config, scale=config.main_pixel_scale / brightest(env))

    if config.main_learner == "rainbow":
        return make_categorical_learner(network, config, gamma=config.gamma, key=key, spec=spec)
    net = network(spec.space.n)
    actor = GreedyActor(net, in_keys=[key], spec=spec)
    loss = DoubleDQNLoss(actor, loss_function=config.loss_function)
    loss.make_value_estimator(gamma=config.gamma)
    return actor, loss


def make_options(
    env: EnvBase, config: OptionAgentConfig, num_options: int
) -> tuple[OptionQValueActor, OptionDQNLoss]:
    """The option set and its Double DQN loss, on values or, for Rainbow, on their distributions."""
    spec = env.action_spec_unbatched
    stack = StackedNet if config.independent_networks else MultiHeadNet
    key, gamma = observation_key(env), option_gamma(config)

    def heads(size: int) -> nn.Module:
        networks = stack(make_network_fn(env, config), num_options, size)
        return centred(networks, env, config)

    chosen: dict[str, Any] = {
        "single_step": config.one_step_options,
        "successor": config.option_successor,
        "options_per_update": config.options_per_update,
    }
    actor: OptionQValueActor
    loss: OptionDQNLoss
    if config.main_learner == "rainbow":
        actor, loss = make_categorical_options(
            heads, num_options, config, gamma=gamma, key=key, spec=spec, **chosen
        )
    else:
        net = heads(spec.space.n)
        actor = OptionQValueActor(net, num_options=num_options, in_keys=[key], spec=spec)
        loss = OptionDQNLoss(actor, loss_function=config.loss_function, **chosen)
        loss.make_value_estimator(gamma=gamma)
    if config.average_options and config.target_tau is not None:
        actor = averaged(actor, loss.target_option_network_params)
    return actor, loss


def option_gamma(config: OptionAgentConfig) -> float:
    """The options' own discount, or the main learner's."""
    return config.gamma if config.option_gamma is None else config.option_gamma


def make_explorer(
    env: EnvBase, config: OptionAgentConfig, num_options: int, eps_start: int
) -> OptionExplorationModule:
    """The exploration module of Algorithm 1."""
    return OptionExplorationModule(
        env.action_spec_unbatched,
        num_options=num_options,
        eps_init=config.eps_init,
        eps_end=config.eps_end,
        annealing_num_steps=config.eps_frames,
        annealing_start=eps_start,
        option_prob=config.option_prob,
        option_duration=config.option_duration,
        option_eps=config.option_eps,
        option_eps_init=config.option_eps_init,
        eps_per=config.eps_per or ("step" if config.termination is None else "decision"),
        wait_for_reward=config.eps_after_reward,
        reward_patience=reward_patience(
            config.eps_patience, config.eps_frames, config.eps_after_reward
        ),
        across_episodes=config.options_across_episodes,
        selection=imported(config.selection),
        termination=imported(config.termination),
    )


def make_eigen_reward(
    encoder: TensorDictModule,
    config: OptionAgentConfig,
    *,
    mode: Literal["telescoped", "discounted", "potential"],
    signs: Literal["+", "-", "both"],
    skip_first: bool = True,
) -> EigenReward:
    """The rewards of options that follow an encoder's outputs, over the same steps as their loss."""
    if config.one_step_options and mode == "discounted":
        raise ValueError(
            "reward_mode 'discounted' differs from 'telescoped' over several steps only: set "
            "one_step_options=False with it"
        )
    return EigenReward(
        encoder,
        config.num_options,
        skip_first=skip_first,
        signs=signs,
        mode=mode,
        gamma=option_gamma(config),
        single_step=config.one_step_options,
        successor=config.option_successor,
        reuse_representation=True,
    )


def make_targets(config: LearnerConfig, losses: Sequence[LossModule]) -> list[TargetNetUpdater]:
    """One updater for each loss with target networks; a table has none."""
    delayed = [loss for loss in losses if not isinstance(loss, TabularQLoss)]
    if config.target_tau is not None:
        return [DirectSoftUpdate(loss, tau=config.target_tau) for loss in delayed]
    return [
        HardUpdate(loss, value_network_update_interval=target_period(config, loss))
        for loss in delayed
    ]


def target_period(config: LearnerConfig, loss: LossModule) -> int:
    """The period of hard target updates of a loss: the options' own, if set, or the main learner's."""
    if isinstance(config, OptionConfig) and isinstance(loss, OptionDQNLoss):
        own = config.option_target_period
        return config.target_period if own is None else own
    return config.target_period


class MixedOptimizer(OptionAdam):
    r"""Adam, centred RMSProp or plain gradient steps by parameter group; only trained options are updated.

    Groups with ``rmsprop=True`` move by :math:`-\eta g / \sqrt{v - m^2 + \epsilon}`, m and v running means of g and
    g² with decay 0.95, as in DQN (Mnih et al. 2015); one with ``table=True`` by :math:`-\eta g`.

    Args:
        args, kwargs: arguments of :class:`~torchrl_dceo._fast.steps.OptionAdam`.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.agents.builders import MixedOptimizer
        >>> weight, table = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        >>> groups = [{"params": [weight], "rmsprop": True, "eps": 0.0}, {"params": [table], "table": True}]
        >>> optimizer = MixedOptimizer(groups, lr=0.1)
        >>> (2 * weight + 3 * table).backward()
        >>> optimizer.step()  # m = 0.1 and v = 0.2: 2 / √0.19
        >>> round(weight.item(), 4), round(table.item(), 4)
        (-0.4588, -0.3)
    """

    _decay = 0.95

    @torch.no_grad()
    def step(
        self, closure: Callable[[], Any] | None = None, *, trained: Sequence[TrainedRows] = ()
    ) -> Any:
        """Updates all parameters with a gradient; of the parameters in ``trained`` only the given rows."""
        groups = self.param_groups
        self.param_groups = [g for g in groups if not g.get("table") and not g.get("rmsprop")]
        own = {id(p) for group in self.param_groups for p in group["params"]}
        try:
            result = super().step(closure, trained=[r for r in trained if id(r.parameter) in own])
        finally:
            self.param_groups = groups
        some = {id(rows.parameter): rows for rows in trained}
        for group in groups:
            if not group.get("table") and not group.get("rmsprop"):
                continue
            for parameter in group["params"]:
                rows = some.get(id(parameter))
                if parameter.grad is None and (rows is None or rows.gradients is None):
                    continue
                if group.get("table"):
                    parameter.sub_(parameter.grad, alpha=group["lr"])
                else:
                    self._rmsprop(parameter, group, rows)
        return result

    def _rmsprop(self, parameter: Tensor, group: dict[str, Any], rows: TrainedRows | None) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        parts = [slice(None)]
        if rows is not None:
            parts = [slice(i * rows.rows, (i + 1) * rows.rows) for i in rows.options]
        for i, part in enumerate(parts):
            mean, square = state["mean"][part], state["square"][part]
            if rows is not None and rows.gradients is not None:
                g = rows.gradients[i].view(mean.shape)
            else:
                assert parameter.grad is not None
                g = parameter.grad[part]
            mean.lerp_(g, 1 - self._decay)
            square.lerp_(g.square(), 1 - self._decay)
            deviation = (square - mean.square()).clamp_(min=0).add_(group["eps"]).sqrt_()
            parameter[part].addcdiv_(g, deviation, value=-group["lr"])


def make_optimizer(
    config: LearnerConfig, modules: Mapping[str, nn.Module]
) -> torch.optim.Optimizer:
    """One optimizer over all parameters: faster than one per loss, with the same arithmetic.

    The main learner's Adam has its own ε. Until the first reward is found its gradients are almost 0, and Adam
    divides them by their size: thousands of full steps in random directions, after which the values of all states
    nearly agree. A table uses plain gradient steps.
    """
    groups: dict[tuple[float, float, bool], dict[int, nn.Parameter]] = {}
    tables: list[nn.Parameter] = []
    lr = config.lr if config.representation_lr is None else config.representation_lr
    for name, module in modules.items():
        if isinstance(module, TabularQLoss):
            tables += module.parameters()
        elif isinstance(module, LossModule):
            values = name in ("main", "option")
            rmsprop = values and config.optimizer == "rmsprop"
            eps = config.main_adam_eps if name == "main" else config.adam_eps
            kind = (config.lr if values else lr, config.rmsprop_eps if rmsprop else eps, rmsprop)
            parameters = {id(p): p for p in module.parameters() if p.requires_grad}
            groups.setdefault(kind, {}).update(parameters)
    made: list[dict[str, Any]] = []
    for (own_lr, eps, rmsprop), group in groups.items():
        made.append({"params": list(group.values()), "eps": eps})
        # Only settings that differ are passed, so that a run's description does not change.
        if own_lr != config.lr:
            made[-1]["lr"] = own_lr
        if rmsprop:
            made[-1]["rmsprop"] = True
    # Options that are not trained in an update must not move by momentum.
    some = any(isinstance(m, OptionDQNLoss) and m.options_per_update for m in modules.values())
    # Half the step size: the gradient of a squared error has a factor 2.
    if tables:
        made.append({"params": tables, "table": True, "lr": config.table_step_size / 2})
    kind_of: type[torch.optim.Adam]
    if config.optimizer == "rmsprop" or (tables and some):
        kind_of = MixedOptimizer
    elif tables:
        kind_of = AdamWithTables
    else:
        kind_of = OptionAdam if some else DirectAdam
    return kind_of(made, lr=config.lr, fused=True)


CENTRING = "centring"


def assemble(
    env: EnvBase,
    config: LearnerConfig,
    policy: TensorDictModuleBase,
    objectives: Mapping[str, Objective],
    *,
    explorer: Explorer,
    phases: Sequence[Phase] = (Phase("online"),),
    transforms: Sequence[Transform] = (),
    window: bool = False,
    pair_steps: int = 1,
    uniform_measure: Literal["visits", "distinct"] | None = None,
    state_keys: Sequence[NestedKey] = (),
    step_keys: Sequence[NestedKey] = ("action",),
    observers: Sequence[Callable[[TensorDictBase], None]] = (),
) -> Agent:
    """Builds the agent from its policy and objectives, with optimizer, target networks and replay from the config.

    Args:
        env (EnvBase): the environment it is for.
        config (LearnerConfig): settings of the main learner.
        policy (TensorDictModuleBase): see :class:`~torchrl_dceo.agents.agent.Agent`.
        objectives (mapping of str to Objective): see there. For networks on centred images, a
            :class:`~torchrl_dceo.modules.CentringFit` is put first.

    Keyword Args:
        explorer, phases, transforms, observers: see there.
        window, pair_steps, uniform_measure, state_keys, step_keys: the parts of a batch that the objectives need, see
            :class:`~torchrl_dceo.agents.agent.ReplaySettings`.
    """
    modules = {name: objective.module for name, objective in objectives.items()}
    targeted = [modules[name] for name in ("option", "main") if name in modules]
    if config.weighted_mean:
        # A table has its own step per transition, without weights.
        weighted = [loss for loss in targeted if not isinstance(loss, TabularQLoss)]
        objectives = {
            name: dataclasses.replace(objective, weighted_mean=objective.module in weighted)
            for name, objective in objectives.items()
        }
    keys = (*state_keys, "state_id") if config.main_learner == "table" else state_keys
    parts = (policy, *modules.values())
    if any(isinstance(module, Centred) for part in parts for module in part.modules()):
        fit = CentringFit(parts, in_key=observation_key(env))
        objectives = {CENTRING: Objective(fit), **objectives}
        phases = [
            phase
            if phase.objectives is None
            else dataclasses.replace(phase, objectives=(CENTRING, *phase.objectives))
            for phase in phases
        ]
    return Agent(
        policy,
        objectives,
        explorer=explorer,
        optimizer=make_optimizer(config, modules),
        targets=make_targets(config, targeted),
        replay=ReplaySettings(
            n_steps=config.n_steps,
            gamma=config.gamma,
            batch_size=config.batch_size,
            window=window,
            pair_steps=pair_steps,
            measure=config.replay_measure,
            newest=config.replay_newest,
            by_action=config.replay_by_action,
            uniform_measure=uniform_measure or config.replay_measure,
            state_keys=tuple(dict.fromkeys(keys)),
            step_keys=step_keys,
            prioritized=config.prioritized,
            alpha=config.priority_alpha,
            beta=config.priority_beta,
        ),
        phases=phases,
        transforms=transforms,
        max_grad_norm=config.max_grad_norm,
        observers=observers,
    )


def make_option_agent(
    env: EnvBase,
    config: OptionAgentConfig,
    discovery: Mapping[str, Objective],
    num_options: int,
    *,
    discovery_frames: int | None,
    window: bool = False,
    pair_steps: int = 1,
    uniform_measure: Literal["visits", "distinct"] | None = None,
    step_keys: Sequence[str] = ("action",),
    selection: DirectedSelection | None = None,
) -> Agent:
    """Builds an agent whose options follow an ``option_reward``.

    Args:
        env (EnvBase): the environment it is for.
        config (OptionAgentConfig): settings of the main learner, of the options and of the behaviour.
        discovery (mapping of str to Objective): the objectives that write ``option_reward`` into the batch, in order.
        num_options (int): the number of rewards.

    Keyword Args:
        discovery_frames (int, optional): frames of option discovery without reward; then the options are frozen and
            the main learner is trained; ``None``: everything is trained all the time.
        window (bool): whether the rewards need the intermediate states.
        pair_steps (int): steps between the states of the Laplacian's pairs.
        uniform_measure (str, optional): measure of the batches of objectives that average over states;
            ``None``: that of all batches.
        step_keys (sequence of str): further entries stored with each step.
        selection (DirectedSelection, optional): the selection of options; ``None``: that of the config.
    """
    main, main_loss = make_main_learner(env, config)
    actor, option_loss = make_options(env, config, num_options)
    phases: tuple[Phase, ...] = (Phase("online"),)
    if discovery_frames is not None:
        phases = (
            Phase("discovery", discovery_frames, (*discovery, "option"), reward_free=True),
            Phase("learning", None, ("main",)),
        )
    # ε keeps its initial value during discovery.
    explorer = make_explorer(env, config, num_options, (discovery_frames or 0) + config.eps_start)
    if selection is not None:
        explorer.selection = selection
    return assemble(
        env,
        config,
        PolicySequence(main, actor, explorer),
        {**discovery, "option": Objective(option_loss), "main": Objective(main_loss)},
        explorer=explorer,
        phases=phases,
        transforms=[explorer.make_tensordict_primer()],
        window=window,
        pair_steps=pair_steps,
        uniform_measure=uniform_measure,
        step_keys=step_keys,
        observers=() if selection is None else (selection.observe,),
    )
