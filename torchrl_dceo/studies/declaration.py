"""The declaration of a study: a question, and for each preset the runs that answer it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchrl_dceo.settings import choices

__all__ = ["Grid", "Job", "Method", "Preset", "Script", "Study"]

_FOLDER = re.compile(r"\w[\w .,+=()-]*")


@dataclass(frozen=True)
class Job:
    """One run of a study: a command that writes into its own folder.

    Attributes:
        name (str): the folder, within those of the study's runs.
        program (str): a module, run as ``python -m``, or the path of a Python file: ``"torchrl_dceo"``.
        arguments (tuple of str): the program's arguments; ``{folder}`` is replaced by the run's folder.
        continued (tuple of str): the arguments that resume a run; the same as ``arguments`` for a program
            that cannot resume, which is then repeated.
        hydra (bool): whether Hydra reads the arguments.
        environment, agent, seed (optional): of an agent's run, with the study's names.
        frames (int, optional): the frames of an agent's run.
        minutes (float, optional): approximate duration of a script on one core.

    Examples:
        >>> from torchrl_dceo.studies import Grid
        >>> job = next(Grid("nine_rooms", ["dceo"], seeds=3, total_frames=1000).jobs())
        >>> job.name, job.command("runs/mine").split(" run_dir=")[0]
        ('nine_rooms/dceo/seed_0', 'python -m torchrl_dceo train env=nine_rooms agent=dceo seed=0 total_frames=1000')
    """

    name: str
    program: str
    arguments: tuple[str, ...]
    continued: tuple[str, ...]
    hydra: bool = False
    environment: str | None = None
    agent: str | None = None
    seed: int | None = None
    frames: int | None = None
    minutes: float | None = None

    def command(self, folder: str) -> str:
        """The command line."""
        given = [argument.replace("{folder}", folder) for argument in self.arguments]
        return shlex.join(["python", *program_arguments(self.program), *given])


def program_arguments(program: str) -> list[str]:
    """Python's arguments for a program: ``-m`` for a module, the path of a file.

    Examples:
        >>> from torchrl_dceo.studies.declaration import program_arguments
        >>> program_arguments("torchrl_dceo"), program_arguments("mine/train.py")
        (['-m', 'torchrl_dceo'], ['mine/train.py'])
    """
    return [program] if program.endswith(".py") else ["-m", program]


@dataclass(frozen=True)
class Method:
    """An agent in a grid, with its own settings.

    Args:
        agent (str): its name in the recipes.
        overrides (sequence of str, optional): as on the command line.
        label (str, optional): its name in the study; variants of one agent need one. Default: the agent's name.
    """

    agent: str
    overrides: Sequence[str] = ()
    label: str | None = None

    @property
    def name(self) -> str:
        """The name in the study."""
        return self.label or self.agent


@dataclass(frozen=True)
class Grid:
    """Training runs in an environment: every method with every seed.

    Args:
        env (str): its name on the command line of training: ``"nine_rooms"``.
        methods (sequence of Method or str): the agents.
        seeds (int or sequence of int): the number of seeds, from 0 on, or the seeds.
        total_frames (int): frames of a run, discovery included.
        overrides (sequence of str, optional): overrides of all runs, as on the command line.
        label (str, optional): the environment's name in the study. Default: ``env``.
        program (str, optional): the training program, called with ``train`` if it is the package, ``env=``, ``agent=``,
            ``seed=`` and so on. Default: ``"torchrl_dceo"``.
    """

    env: str
    methods: Sequence[Method | str]
    seeds: int | Sequence[int]
    total_frames: int
    overrides: Sequence[str] = ()
    label: str | None = None
    program: str = "torchrl_dceo"

    @property
    def name(self) -> str:
        """The environment's name in the study."""
        return self.label or self.env

    def jobs(self) -> Iterator[Job]:
        """The runs, ordered by seed, so that an interrupted study has all methods with the first seeds."""
        command = ("train",) if self.program == "torchrl_dceo" else ()
        methods = [Method(given) if isinstance(given, str) else given for given in self.methods]
        for seed in self.seed_list:
            for method in methods:
                arguments = (
                    *command,
                    f"env={self.env}",
                    f"agent={method.agent}",
                    f"seed={seed}",
                    f"total_frames={self.total_frames}",
                    *self.overrides,
                    *method.overrides,
                )
                yield Job(
                    name=f"{self.name}/{method.name}/seed_{seed}",
                    program=self.program,
                    arguments=(*arguments, "run_dir={folder}", "hydra.run.dir={folder}"),
                    continued=(*arguments, "resume={folder}", "hydra.run.dir={folder}"),
                    hydra=True,
                    environment=self.name,
                    agent=method.name,
                    seed=seed,
                    frames=self.total_frames,
                )

    @property
    def seed_list(self) -> list[int]:
        """The seeds, one by one."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)


@dataclass(frozen=True)
class Script:
    """A program that does a part of a study and writes figures and tables into its folder.

    Args:
        name (str): the name of the part.
        program (str): a module, run as ``python -m``, or the path of a Python file:
            ``"torchrl_dceo.studies.experiments.tabular"``.
        arguments (sequence of str): ``{folder}`` is replaced by the folder.
        minutes (float): approximate duration on one core.
    """

    name: str
    program: str
    arguments: Sequence[str]
    minutes: float

    def jobs(self) -> Iterator[Job]:
        """Its single run."""
        given = tuple(self.arguments)
        yield Job(self.name, self.program, given, continued=given, minutes=self.minutes)


@dataclass(frozen=True)
class Preset:
    """A study at one size.

    Args:
        size (str): a description for captions: ``"rooms of 3x3, 60,000 frames, 4 seeds"``.
        parts (sequence of Grid or Script): the parts.
    """

    size: str
    parts: Sequence[Grid | Script]

    def jobs(self) -> list[Job]:
        """All runs."""
        for part in self.parts:
            check_folder_name("a part of a study", part.name)
            for method in part.methods if isinstance(part, Grid) else ():
                check_folder_name("an agent of a study", _name(method))
        jobs = [job for part in self.parts for job in part.jobs()]
        names = [job.name for job in jobs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two runs of one study are called {name}: give one a label")
        return jobs

    def restricted(
        self,
        *,
        environments: Sequence[str] = (),
        agents: Sequence[str] = (),
        seeds: Sequence[int] = (),
    ) -> Preset:
        """The preset restricted to some environments and agents, with other seeds; empty arguments change nothing."""
        grids = [part for part in self.parts if isinstance(part, Grid)]
        if not grids and (agents or seeds):
            raise ValueError("this study runs whole scripts: it has no agents or seeds to choose")
        known = list(dict.fromkeys(part.name for part in self.parts))
        _check("environment of this study", environments, known)
        names = [_name(method) for grid in grids for method in grid.methods]
        _check("agent of this study", agents, list(dict.fromkeys(names)))
        parts: list[Grid | Script] = []
        for part in self.parts:
            if environments and part.name not in environments:
                continue
            if isinstance(part, Grid):
                methods = [m for m in part.methods if not agents or _name(m) in agents]
                part = replace(part, methods=methods, seeds=tuple(seeds) or part.seeds)
                if not methods:
                    continue
            parts.append(part)
        if not parts:
            raise ValueError(
                f"no run of this study has {', '.join(agents)} in {', '.join(environments)}"
            )
        return replace(self, parts=parts)


def check_folder_name(kind: str, name: str) -> None:
    """Raises an error for a name that is not a plain folder name, e.g. a path out of the study's folder.

    Examples:
        >>> from torchrl_dceo.studies.declaration import check_folder_name
        >>> check_folder_name("a study", "../mine")
        Traceback (most recent call last):
        ValueError: '../mine' cannot name a study: it becomes a folder, so use letters, digits, spaces and . , + = ( ) -
    """
    if not isinstance(name, str) or not _FOLDER.fullmatch(name) or len(name) > 100:
        raise ValueError(
            f"{name!r} cannot name {kind}: it becomes a folder, so use letters, digits, spaces and . , + = ( ) -"
        )


def _name(method: Method | str) -> str:
    return method if isinstance(method, str) else method.name


def _check(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"unknown {kind} {choices(name, known)}")


@dataclass(frozen=True)
class Study:
    """A question about agents, and the runs that answer it.

    Args:
        name (str): its name on the command line.
        title (str): title of its figure and page.
        question (str): the question in one sentence.
        presets (mapping of str to Preset): its sizes.
        metrics (sequence of str, optional): the columns of the logs to draw and summarise.

    Examples:
        >>> from torchrl_dceo.studies import Grid, Preset, Study
        >>> grid = Grid("nine_rooms", ["dceo", "ddqn"], seeds=2, total_frames=1000)
        >>> study = Study("mine", "Mine", "Is it better?", {"laptop": Preset("1,000 frames", [grid])})
        >>> [job.name for job in study.preset("laptop").jobs()][:2]
        ['nine_rooms/dceo/seed_0', 'nine_rooms/ddqn/seed_0']
        >>> study.preset("desk")
        Traceback (most recent call last):
        ValueError: study mine has no size 'desk'; choose from laptop
    """

    name: str
    title: str
    question: str
    presets: Mapping[str, Preset]
    metrics: Sequence[str] = field(default=("eval_return", "train_return", "coverage"))

    def __post_init__(self) -> None:
        for name in (self.name, *self.presets):
            check_folder_name("a study or a preset", name)

    def preset(self, name: str) -> Preset:
        """The preset of this size."""
        if name not in self.presets:
            raise ValueError(f"study {self.name} has no size {choices(name, list(self.presets))}")
        return self.presets[name]
