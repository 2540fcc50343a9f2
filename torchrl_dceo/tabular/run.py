"""``run_tabular``: one method in one environment, all seeds at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor
from torchrl.modules import EGreedyModule

from torchrl_dceo.envs import TableEnv
from torchrl_dceo.modules import EZGreedyModule
from torchrl_dceo.modules.exploration import value_termination
from torchrl_dceo.modules.temporally_extended import NO_OPTION
from torchrl_dceo.tabular.ceo import RODCycle, Signs, TabularOptionExploration, Weights
from torchrl_dceo.tabular.q_learning import QLearning, QTable, TabularMeasures, evaluate_greedy

__all__ = ["METHODS", "TabularConfig", "run_tabular"]

Method = Literal["random", "counts", "ez_greedy", "ceo", "ceo_two_phase"]
METHODS: tuple[Method, ...] = get_args(Method)
"""The tabular agents."""


_OF_A_SEED = ("eps", "option_prob", "num_options", "bonus_scale")


@dataclass
class TabularConfig:
    """Settings of the tabular agents; each method uses only some of them.

    Examples:
        >>> from torchrl_dceo.tabular import TabularConfig
        >>> TabularConfig(eps=2.0)
        Traceback (most recent call last):
        ValueError: eps must lie in [0, 1], got 2.0
    """

    total_steps: int = 50_000  # of each seed
    step_size: float = 0.1  # α; the paper
    gamma: float = 0.99  # ours: as the deep agents
    eps: float = 0.1  # ε; the paper, when there is a reward; 1 to cover states
    option_prob: float = 0.5  # μ; the paper searches in 0.05, 0.1, 0.5, 0.7
    num_options: int = 5  # the paper searches in 1, 3, 5
    signs: Signs = "rare"  # ours, see RODCycle
    weights: Weights = "visits"  # ours, see RODCycle
    termination: Literal["value", "geometric"] = "value"  # the paper: where no action has a value
    option_duration: float = 10.0  # D, for the geometric one
    model_prior: float = 1.0  # ours, see RODCycle
    renewal_period: int = 25  # ours: options are renewed after an episode, at one of every 25 steps
    option_gamma: float = 0.9  # ours: covers Four Rooms faster than 0.99 and 0.8
    bonus_scale: float = 1.0  # β of counts; the paper's appendix adds 1/√n(s) as it is
    optimistic: bool = True  # counts: the table starts at β / (1 - γ), see run_tabular
    zeta_exponent: float = 2.0  # k of ez_greedy; the paper
    discovery_steps: int = 10_000  # T_discovery of ceo_two_phase; ours
    discovery_prob: float | None = None  # μ in it; None: the same as later
    log_period: int = 100  # steps between rows
    eval_period: int = 1000  # steps between greedy evaluations

    def __post_init__(self) -> None:
        for name in ("eps", "option_prob", "discovery_prob"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        for name in ("total_steps", "log_period", "eval_period"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.eval_period % self.log_period:
            raise ValueError(
                f"eval_period must be a multiple of log_period ({self.log_period}), got {self.eval_period}"
            )
        if self.bonus_scale < 0:
            raise ValueError(f"bonus_scale must not be negative, got {self.bonus_scale}")
        if self.termination not in ("value", "geometric"):
            raise ValueError(
                f"termination must be 'value' or 'geometric', got {self.termination!r}"
            )


def run_tabular(
    method: Method,
    env: TableEnv,
    config: TabularConfig | Sequence[TabularConfig],
    *,
    discovery_env: TableEnv | None = None,
    eval_env: TableEnv | None = None,
    on_step: Callable[[int, TabularMeasures], None] | None = None,
    stop_when_covered: bool = False,
) -> TensorDict:
    """Runs Q-learning with one way to explore, for a batch of seeds at once.

    - ``random``: ε-greedy;
    - ``counts``: ε-greedy with β/√n(s') added to rewards, n the exact counts of the seed. Its table starts
      at β/(1 - γ), the value of bonuses that never fade: in a table of zeros, the first action with a bonus
      would have a higher value than all untried ones, even without effect (``optimistic=False``);
    - ``ez_greedy``: when exploring, with probability μ a random action is repeated for a zeta number of steps;
    - ``ceo``: when exploring, with probability μ an option runs; options are recomputed after each episode
      (:class:`~torchrl_dceo.tabular.RODCycle`);
    - ``ceo_two_phase``: the paper's Algorithm 2: options are discovered with ε = 1 in the environment without reward
      for the first ``discovery_steps``, and then kept.

    With ``eps=1`` the greedy action is never used, and the run measures coverage. For ``counts``, ε = 1 - μ is
    the corresponding trade-off between the method and random actions.

    Args:
        method (str): one of :data:`METHODS`.
        env (TableEnv): a batch of environments, one per seed: batch size ``[B]``.
        config (TabularConfig or sequence of them): the settings; several, one for each seed, may differ in
            ``eps``, ``option_prob``, ``num_options`` and ``bonus_scale``, so that a search is one run.

    Keyword Args:
        discovery_env (TableEnv, optional): the environment without reward, for ``ceo_two_phase``.
        eval_env (TableEnv, optional): for greedy evaluations: batch size ``[B, episodes]``.
        on_step (callable, optional): called after each step with the number of steps and the metrics.
        stop_when_covered (bool): ends the run when every seed has visited every state.

    Returns:
        TensorDict: ``frames`` ``[T]``, and for each row and seed ``[T, B]``: ``coverage``, ``train_return``,
        ``option_share``, and with an ``eval_env`` ``eval_return`` (NaN between evaluations). Besides ``counts``
        ``[B, S]``; ``covered_at`` ``[B]``, the steps it took to visit every state (-1: never); ``action_value``
        ``[B, S, A]``, and for ``ceo`` the ``option_action_value`` ``[B, S, N, A]`` of the end.

    Examples:
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.tabular import TabularConfig, run_tabular
        >>> env = GridWorldEnv("S....", batch_size=[3], seed=0)
        >>> result = run_tabular("ceo", env, TabularConfig(total_steps=200, eps=1.0, eval_period=100))
        >>> result["frames"].tolist(), result["coverage"].shape
        ([100, 200], torch.Size([2, 3]))
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if len(env.batch_size) != 1:
        raise ValueError(
            f"there must be one environment per seed, batch size [B], got {list(env.batch_size)}"
        )
    configs = [config] * env.batch_size[0] if isinstance(config, TabularConfig) else list(config)
    config = _common(configs, env.batch_size[0])
    if method == "ceo_two_phase" and discovery_env is None:
        raise ValueError(
            "ceo_two_phase discovers options without reward: pass discovery_env, the "
            "environment with coverage=True"
        )
    if method == "ceo_two_phase" and not 0 < config.discovery_steps < config.total_steps:
        raise ValueError(
            f"discovery_steps must lie between 0 and total_steps ({config.total_steps}), got {config.discovery_steps}"
        )
    run = _Run(method, env, configs, eval_env, on_step, stop_when_covered)
    if method == "ceo_two_phase":
        assert discovery_env is not None
        run.go(discovery_env, config.discovery_steps, discovery=True)
    run.go(env, config.total_steps)
    return run.result()


class _Run:
    """The state of a run: tables, options, metrics."""

    def __init__(
        self,
        method: Method,
        env: TableEnv,
        configs: Sequence[TabularConfig],
        eval_env: TableEnv | None,
        on_step: Callable[[int, TabularMeasures], None] | None,
        stop_when_covered: bool,
    ) -> None:
        config = configs[0]
        self.method, self.config = method, config
        self.eval_env, self.on_step = eval_env, on_step
        self.stop_when_covered = stop_when_covered
        num_seeds = env.batch_size[0]
        sizes = (num_seeds, env.num_states, env.num_actions)
        self.actor = QTable(*sizes)
        self.learn = QLearning(self.actor, step_size=config.step_size, gamma=config.gamma)
        self.cycle = None
        if method in ("ceo", "ceo_two_phase"):
            self.cycle = RODCycle(
                *sizes,
                torch.tensor([own.num_options for own in configs]),
                signs=config.signs,
                weights=config.weights,
                gamma=config.option_gamma,
                prior=config.model_prior,
                period=config.renewal_period,
            )
        self.eps, self.option_prob, self.bonus_scale = (
            torch.tensor([float(getattr(own, name)) for own in configs])
            for name in ("eps", "option_prob", "bonus_scale")
        )
        if method == "counts" and config.optimistic:
            bound = self.bonus_scale / (1 - config.gamma)
            self.actor.table.copy_(bound.view(-1, 1, 1).expand(sizes))
        self.measures = TabularMeasures(num_seeds, env.num_states)
        self.steps = 0

    def policy(self, env: TableEnv, discovery: bool) -> TensorDictModuleBase:
        """The main learner, the options if there are any, and the explorer, with an ε and a μ for each seed."""
        config, spec = self.config, env.action_spec_unbatched
        modules: list[TensorDictModuleBase] = [self.actor]
        explorer: Any
        if self.cycle is not None:
            explorer = TabularOptionExploration(
                spec,
                num_options=self.cycle.options.num_options,
                option_duration=config.option_duration,
                termination=value_termination if config.termination == "value" else None,
            )
            modules.append(self.cycle.options)
        elif self.method == "ez_greedy":
            explorer = EZGreedyModule(spec, zeta_exponent=config.zeta_exponent)
        else:
            explorer = EGreedyModule(spec)
        explorer.eps, explorer.option_prob = self.eps, self.option_prob
        if discovery:
            explorer.eps = torch.ones_like(self.eps)
            if config.discovery_prob is not None:
                explorer.option_prob = config.discovery_prob
        return TensorDictSequential(*modules, explorer)

    def go(self, env: TableEnv, until: int, *, discovery: bool = False) -> None:
        """Runs in an environment, from a reset, until the given total number of steps.

        During discovery, options are computed with ε = 1 and nothing is learned.
        """
        policy = self.policy(env, discovery)
        discovers = discovery or self.method == "ceo"
        step = _start(env)
        self.measures.started(step.get("state_id"))
        while self.steps < until:
            policy(step)
            # The explorer's state continues at the root, which the environment carries to the next step.
            step.pop("next", None)
            now, step = env.step_and_maybe_reset(step)
            self.steps += 1
            self.measures.stepped(now, step, self.steps)
            if not discovery:
                self.learn(self._with_bonus(now))
            done = now.get(("next", "done"))
            step.set("is_init", done)
            if discovers:
                assert self.cycle is not None
                renewed = self.cycle.update(now)
                # A running option that was replaced ends.
                step.set("option", step.get("option").masked_fill(renewed, NO_OPTION))
            self._report()
            if self.stop_when_covered and bool((self.measures.covered_at >= 0).all()):
                return

    def _with_bonus(self, now: TensorDictBase) -> TensorDictBase:
        if self.method != "counts":
            return now
        visits = self.measures.count_of(now.get(("next", "state_id")))
        bonus = (self.bonus_scale * visits.rsqrt()).unsqueeze(-1)
        following = now.get("next")
        rewarded = following.copy().set("reward", following.get("reward") + bonus)
        return now.copy().set("next", rewarded)

    def _report(self) -> None:
        config = self.config
        if self.steps % config.log_period == 0:
            evaluated = None
            if self.eval_env is not None and self.steps % config.eval_period == 0:
                evaluated = evaluate_greedy(self.actor, self.eval_env)
            self.measures.row(self.steps, evaluated)
        if self.on_step is not None:
            self.on_step(self.steps, self.measures)

    def result(self) -> TensorDict:
        """The result of :func:`run_tabular`."""
        result = self.measures.result()
        result.set("action_value", self.actor.table)
        if self.cycle is not None:
            result.set("option_action_value", self.cycle.options.table)
        return result


def _common(configs: Sequence[TabularConfig], num_seeds: int) -> TabularConfig:
    """Validates the settings, and returns those shared by all seeds."""
    if len(configs) != num_seeds:
        raise ValueError(f"{num_seeds} seeds need as many configs (or one), got {len(configs)}")
    for own in configs[1:]:
        for field in fields(TabularConfig):
            name = field.name
            if name not in _OF_A_SEED and getattr(own, name) != getattr(configs[0], name):
                raise ValueError(
                    f"seeds may differ in {', '.join(_OF_A_SEED)}, and not in {name}: got "
                    f"{getattr(configs[0], name)!r} and {getattr(own, name)!r}"
                )
    return configs[0]


def _start(env: TableEnv) -> TensorDictBase:
    """The entries of the first step with the explorers' state, as set by an environment's primer."""
    step = env.reset()
    nothing = torch.zeros(env.batch_size, dtype=torch.int64)
    step.set("option", nothing + NO_OPTION)
    step.set("option_remaining", nothing)
    return step.set("is_init", torch.ones_like(step.get("done")))


def steps_to_cover(result: TensorDictBase) -> Tensor:
    """Returns each seed's number of steps to visit every state, as float64 ``[B]``; infinite if it never did.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl_dceo.tabular.run import steps_to_cover
        >>> steps_to_cover(TensorDict({"covered_at": torch.tensor([120, -1])}))
        tensor([120., inf], dtype=torch.float64)
    """
    steps = result.get("covered_at").double()
    return torch.where(steps < 0, torch.inf, steps)
