"""The studies of deep agents: coverage and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrl_dceo.studies.declaration import Grid, Method, Preset, Study

__all__ = [
    "ABLATION",
    "BASELINES",
    "DEEP_COVERAGE",
    "ONLINE",
    "ONLINE_VS_TWO_PHASE",
    "SMOKE",
    "SMOKE_FRAMES",
    "TWO_PHASE",
    "methods",
]

BASELINES = ("ddqn", "counts", "ez_greedy", "rnd")
"""The paper's baselines wherever returns are compared."""


DISCOVERING = ("dceo_two_phase", "diayn", "cic")
"""Agents that discover options first, in the environment without reward."""


SMOKE_FRAMES = 400


SMOKE = (
    "num_envs=4",
    "learning_starts=100",
    "update_period=20",
    "log_period=100",
    "eval_period=200",
    "eval_episodes=2",
    "checkpoint_period=100",
    "agent.batch_size=8",
    "progress=false",
)
"""Runs of seconds, to test that everything works."""


def methods(
    agents: Sequence[str],
    frames: int,
    *,
    discovery: int | None = None,
    annealed: float = 0.7,
    own: Mapping[str, Sequence[str]] | None = None,
) -> list[Method]:
    """Agents with schedules for a given run length: ε is annealed over a share of the frames with a goal.

    Args:
        agents (sequence of str): their names.
        frames (int): frames of a run.

    Keyword Args:
        discovery (int, optional): frames of the discovery phase. Default: a third.
        annealed (float, optional): the share over which ε is annealed; as in training. Default: ``0.7``.
        own (mapping, optional): further overrides of single agents.

    Examples:
        >>> from torchrl_dceo.studies.catalogue.deep import methods
        >>> for method in methods(["dceo", "diayn"], 60_000, discovery=20_000):
        ...     print(method.agent, *method.overrides)
        dceo agent.eps_frames=42000
        diayn discovery_frames=20000 agent.eps_frames=28000
    """
    made = []
    for agent in agents:
        first = (frames // 3 if discovery is None else discovery) if agent in DISCOVERING else 0
        overrides = [f"discovery_frames={first}"] if first else []
        overrides.append(f"agent.eps_frames={round(annealed * (frames - first))}")
        made.append(Method(agent, (*overrides, *(own or {}).get(agent, ()))))
    return made


_FREE = "+env.coverage=true"


_CUBE = ("env.coverage=true", "option_prob=0.7")  # μ and N on the cube: the paper


def _methods(frames: int, *, cube: bool = False) -> list[Method]:
    always = "agent.eps_end=1.0"
    # The greedy action of counts is what explores: its ε falls at once.
    at_once = f"agent.eps_frames={max(1, frames // 50)}"
    return [
        Method("dceo", (always, "agent.num_options=3") if cube else (always,)),
        Method("ddqn", (always,), label="random_walk"),
        Method("ez_greedy", (always,)),
        Method("counts", (at_once,)),
    ]


def _grids(frames: int, seeds: int, shared: Sequence[str], cube: Grid) -> list[Grid]:
    given = (_FREE, *shared)
    return [
        Grid("nine_rooms", _methods(frames), seeds, frames, given),
        Grid("maze", _methods(frames), seeds, frames, given),
        cube,
    ]


def _cube_coverage(frames: int, seeds: int, *shared: str) -> Grid:
    # Exact eigenfunctions of 12,224 states are expensive, so they are compared once, at the end.
    once = (f"eval_period={frames}", "eval_episodes=0")
    given = (*_CUBE, *once, *shared)
    return Grid("rubiks_cube", _methods(frames, cube=True), seeds, frames, given, "cube")


DEEP_COVERAGE = Study(
    name="deep_coverage",
    title="State coverage under function approximation",
    question="How many states does DCEO visit while it discovers its options, against a random walk, repeated actions "
    "and counts?",
    presets={
        "paper": Preset(
            "Nine Rooms and Maze 300,000 frames, cube within 5 moves 1,000,000; 30 seeds",
            _grids(
                300_000,
                30,
                ["eval_episodes=0"],
                _cube_coverage(1_000_000, 30, "num_envs=8", "update_period=1"),
            ),
        ),
        "laptop": Preset(
            "Nine Rooms and Maze in full size, 60,000 frames, 4 seeds; cube within 5 moves 60,000 frames, 3 seeds",
            _grids(
                60_000,
                4,
                ["eval_episodes=0", "checkpoint_period=10_000"],
                _cube_coverage(
                    60_000, 3, "num_envs=32", "update_period=16", "checkpoint_period=10_000"
                ),
            ),
        ),
        "smoke": Preset(
            "400 frames",
            [
                Grid(
                    "nine_rooms",
                    _methods(SMOKE_FRAMES),
                    1,
                    SMOKE_FRAMES,
                    (_FREE, "env.room_size=3", *SMOKE),
                ),
                Grid(
                    "rubiks_cube",
                    _methods(SMOKE_FRAMES, cube=True),
                    1,
                    SMOKE_FRAMES,
                    (*_CUBE, "env.max_depth=2", *SMOKE),
                    "cube",
                ),
            ],
        ),
    },
    metrics=("coverage",),
)


_SMALL = ("env.room_size=3", "eval_period=5_000", "checkpoint_period=5_000")


_MAZE = ("eval_period=5_000", "checkpoint_period=10_000")


def _small_nine_rooms(agents: Sequence[str], seeds: int, *overrides: str) -> Grid:
    """Rooms of 3x3 (13x13 cells, 93 states): learned in one or two minutes on one core."""
    schedules = methods(agents, 60_000, discovery=20_000, annealed=2 / 3)
    return Grid(
        "nine_rooms", schedules, seeds, 60_000, (*_SMALL, *overrides), label="small_nine_rooms"
    )


def _short_maze(agents: Sequence[str], seeds: int, *overrides: str) -> Grid:
    """The full Maze, with half of the default frames."""
    schedules = methods(agents, 150_000, discovery=50_000)
    return Grid("maze", schedules, seeds, 150_000, (*_MAZE, *overrides))


def _smoke(agents: Sequence[str], *overrides: str) -> Preset:
    schedules = methods(agents, SMOKE_FRAMES, discovery=200)
    given = ("env.room_size=3", *SMOKE, *overrides)
    return Preset("400 frames, 2 seeds", [Grid("nine_rooms", schedules, 2, SMOKE_FRAMES, given)])


# The default lengths and schedules: 300,000 frames, ε over 70 % of them.
_FRAMES = 300_000


_ONLINE = ("dceo", *BASELINES, "dco")


ONLINE = Study(
    name="online",
    title="Return, learning online",
    question="Does fully online DCEO reach the goal sooner than other ways to explore?",
    presets={
        "paper": Preset(
            "Nine Rooms and Maze, 300,000 frames, 30 seeds",
            [Grid(env, _ONLINE, 30, _FRAMES) for env in ("nine_rooms", "maze")],
        ),
        "laptop": Preset(
            "Nine Rooms with rooms of 3x3, 60,000 frames, 4 seeds; Maze in full size, 150,000 frames, 2 seeds",
            [_small_nine_rooms(_ONLINE, 4), _short_maze(_ONLINE, 2)],
        ),
        "smoke": _smoke(("dceo", "ddqn")),
    },
)


# μ of two-phase agents and of ez_greedy beside them: the paper's 0.9 in Nine Rooms and Maze, 0.7 on the cube.
_MU = "option_prob=0.9"


_CUBE_OPTIONS = ("agent.num_options=3", "agent.option_prob=0.7")


_CUBE_OWN = {
    "dceo_two_phase": _CUBE_OPTIONS,
    "ez_greedy": ("agent.option_prob=0.7",),
}


_STAGED = ("dceo_two_phase", *BASELINES)


def _cube(frames: int, seeds: int, *overrides: str) -> Grid:
    schedules = methods(_STAGED, frames, discovery=frames // 4, annealed=0.5, own=_CUBE_OWN)
    return Grid("rubiks_cube", schedules, seeds, frames, overrides, label="cube")


TWO_PHASE = Study(
    name="two_phase",
    title="Return after a phase of option discovery",
    question="Do options that were discovered first, without reward, pay for the frames that they took? DCEO's and "
    "DIAYN's curves are delayed by discovery.",
    presets={
        "paper": Preset(
            "Nine Rooms and Maze 300,000 frames, 100,000 of them discovery; cube within 5 moves 1,000,000; 30 seeds",
            [
                Grid("nine_rooms", (*_STAGED, "diayn"), 30, _FRAMES, (_MU,)),
                Grid("maze", _STAGED, 30, _FRAMES, (_MU,)),
                _cube(1_000_000, 30, "num_envs=8", "update_period=1", "eval_period=20_000"),
            ],
        ),
        "laptop": Preset(
            "Nine Rooms with rooms of 3x3, 60,000 frames, 3 seeds; Maze in full size, 150,000 frames, 2 seeds; cube "
            "within 5 moves, 60,000 frames, 3 seeds; a third (cube: a quarter) is discovery",
            [
                _small_nine_rooms((*_STAGED, "diayn"), 3, _MU),
                _short_maze(_STAGED, 2, _MU),
                _cube(
                    60_000,
                    3,
                    "num_envs=32",
                    "update_period=16",
                    "eval_period=5_000",
                    "checkpoint_period=10_000",
                ),
            ],
        ),
        "smoke": _smoke(("dceo_two_phase", "diayn", "ddqn"), _MU),
    },
)


_BOTH = ("dceo", "dceo_two_phase")


ONLINE_VS_TWO_PHASE = Study(
    name="online_vs_two_phase",
    title="Online DCEO and DCEO in two phases",
    question="Does DCEO need a phase of its own to discover options?",
    presets={
        "paper": Preset(
            "Nine Rooms and Maze, 300,000 frames, 100,000 of them discovery for two phases, 30 seeds",
            [Grid(env, _BOTH, 30, _FRAMES) for env in ("nine_rooms", "maze")],
        ),
        "laptop": Preset(
            "Nine Rooms with rooms of 3x3, 60,000 frames, 5 seeds; Maze in full size, 150,000 frames, 4 seeds; a third "
            "is discovery for two phases",
            [_small_nine_rooms(_BOTH, 5), _short_maze(_BOTH, 4)],
        ),
        "smoke": _smoke(_BOTH),
    },
)


_ABLATED_FRAMES = 150_000


REVERSED: dict[str, tuple[str, ...]] = {
    "learning_rate": ("agent.lr=1e-4",),
    "adam_as_usual": ("agent.main_adam_eps=1e-8",),
    # 1000 frames at an update per 8.
    "hard_targets": ("agent.target_tau=null", "agent.target_period=125"),
    "epsilon_over_a_tenth": ("agent.eps_after_reward=false", "agent.eps_frames={tenth}"),
    "no_new_start_of_epsilon": ("agent.eps_patience=null",),
    "raw_images": ("agent.centre_pixels=false",),
    "replay_of_visits": ("agent.replay_measure=visits",),
    "epsilon_of_decisions": ("agent.eps_per=decision",),
    "uniform_choice": ("agent.direction=0",),
    "length_alone": ("agent.termination=null",),
    "ten_one_way": ("agent.num_options=10", "agent.signs=+"),
    "greedy_options": ("agent.option_eps=0.0",),
    "discount_of_the_main_learner": ("agent.option_gamma=null",),
    "a_network_an_option": ("agent.independent_networks=true",),
    "n_step_options": ("agent.one_step_options=false",),
    "n_step_discounted_rewards": (
        "agent.one_step_options=false",
        "agent.reward_mode=discounted",
    ),
    "twenty_dimensions": ("agent.dimensions=20",),
    "barrier": ("agent.barrier=0.5",),
    "split_estimator": ("agent.estimator=split",),
    "one_environment": ("num_envs=1",),
    "an_update_a_step": ("update_period=1",),
}
"""Overrides that undo one deviation from the paper each; ``{tenth}`` is a tenth of the frames."""


def _ablation(frames: int, rows: Sequence[str] | None = None) -> list[Method]:
    """Our settings, with each deviation from the paper undone, and the paper's with as many updates."""
    made = [Method("dceo", label="ours")]
    for name, given in REVERSED.items():
        own = tuple(override.replace("{tenth}", str(frames // 10)) for override in given)
        made.append(Method("dceo", own, label=name))
    same_updates = ("preset=paper", "update_period=8", "agent.target_period=125")
    made.append(Method("dceo", same_updates, label="paper"))
    return [method for method in made if rows is None or method.name in rows]


ABLATION = Study(
    name="ablation",
    title="What each deviation from the paper is worth",
    question="Which of our deviations from the paper matter, taken back one at a time, and what does the paper to the "
    "letter reach with as many updates?",
    presets={
        "paper": Preset(
            "Nine Rooms and Maze, 300,000 frames, 10 seeds",
            [
                Grid(env, _ablation(_FRAMES), range(1000, 1010), _FRAMES)
                for env in ("nine_rooms", "maze")
            ],
        ),
        "laptop": Preset(
            "Nine Rooms and Maze, 150,000 frames, 3 seeds",
            [
                Grid(env, _ablation(_ABLATED_FRAMES), range(1000, 1003), _ABLATED_FRAMES)
                for env in ("nine_rooms", "maze")
            ],
        ),
        "smoke": Preset(
            "400 frames, ours, two deviations and the paper",
            [
                Grid(
                    "nine_rooms",
                    _ablation(
                        SMOKE_FRAMES, ("ours", "ten_one_way", "n_step_discounted_rewards", "paper")
                    ),
                    (1000,),
                    SMOKE_FRAMES,
                    ("env.room_size=3", *(given for given in SMOKE if "period=20" not in given)),
                )
            ],
        ),
    },
)
