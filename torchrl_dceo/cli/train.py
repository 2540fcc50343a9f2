"""``dceo train env=nine_rooms agent=dceo key=value …``: one run, or with ``--multirun`` a sweep."""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.cli.config import (
    CONF,
    MISTAKES,
    SHARED,
    TRAIN,
    RunSettings,
    as_dict,
    combinations,
    compose,
    not_read,
    parse,
    prepared,
)
from torchrl_dceo.envs import make_env, prepare_env
from torchrl_dceo.training import Trainer
from torchrl_dceo.training.checkpoint.run_directory import load_settings
from torchrl_dceo.training.checkpoint.state import seed_generators
from torchrl_dceo.training.errors import (
    RunError,
    exit_with_a_sentence,
    own_line,
    run_errors,
)
from torchrl_dceo.training.train import check_task, complete, make_trainer

__all__ = ["build", "check", "main"]

_log = logging.getLogger(__name__)
_PROGRAM = "dceo train"
_FULL_ERROR = "HYDRA_FULL_ERROR"
# Drawn in 3D: built once, when the run starts.
_SLOW = ("MiniWorld", "MyWayHome")
# Hydra's flags that take a value.
_FLAGS = {"-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name"}
_FLAGS |= {"-cd", "--config-dir", "--experimental-rerun"}


def main(
    arguments: Sequence[str] | None = None, *, recipe: str | None = None, program: str = _PROGRAM
) -> int:
    """Runs the command; returns its exit code.

    Args:
        arguments (sequence of str, optional): overrides and Hydra's flags. Default: those of the process.

    Keyword Args:
        recipe (str, optional): the environment that a script is for: ``env=recipe`` goes before the arguments.
        program (str, optional): how sentences about mistakes begin.

    Examples:
        >>> from torchrl_dceo.cli.train import main
        >>> main(["agent=dcceo"])
        Traceback (most recent call last):
        SystemExit: dceo train: unknown agent 'dcceo' (did you mean 'dceo'?); choose from ...
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if recipe is not None:
        program = recipe
        if any(word.startswith("env=") for word in given):
            sys.exit(f"{program}: this script is env={recipe}: use `{_PROGRAM}` for another one")
        given.insert(0, f"env={recipe}")
    launch(given, TRAIN, run, program, functools.partial(check, program=program))
    return 0


def launch(
    arguments: list[str],
    config: str,
    program: Callable[[DictConfig], Any],
    name: str,
    check: Callable[[list[str]], None],
) -> None:
    """Checks the overrides, then gives everything to Hydra."""
    pairs = list(zip(["", *arguments], arguments, strict=False))
    is_flag = [word.startswith("-") or before in _FLAGS for before, word in pairs]
    overrides = [word for word, flag in zip(arguments, is_flag, strict=True) if not flag]
    flags = [word for word, flag in zip(arguments, is_flag, strict=True) if flag]
    sweep = bool({"-m", "--multirun"} & set(flags))
    check(overrides)
    several = [] if sweep else _several_values(overrides)
    if several:
        sys.exit(
            f"{name}: {several[0]} gives several values: add --multirun to train with each of them"
        )
    # Flags last: Hydra's parser takes all overrides in one place.
    words = [*prepared(overrides), *_hydra_directory(overrides, flags), *flags]
    saved = sys.argv
    sys.argv = [name, *words]
    try:
        with _hydra_raises(sweep=sweep), run_errors(Path.cwd()):
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(program)()
    except RunError as error:
        # Hydra makes the directory of a run: on a full disk, or where nothing can be written.
        sys.exit(f"{name}: {error}")
    except (OSError, ValueError) as error:
        # What Hydra's logging meets there is the cause of its own error.
        cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        if not isinstance(cause, OSError):
            raise
        sys.exit(
            f"{name}: {cause.filename} cannot be made ({cause.strerror}): choose another run_dir"
        )
    finally:
        sys.argv = saved


@contextlib.contextmanager
def _hydra_raises(*, sweep: bool) -> Iterator[None]:
    """Lets Hydra raise its errors instead of ending the program with a few lines of its own; not those of a sweep."""
    given = os.environ.get(_FULL_ERROR)
    if given is not None or sweep:
        yield
        return
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    finally:
        del os.environ[_FULL_ERROR]


def _several_values(overrides: Sequence[str]) -> list[str]:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [str(override.input_line) for override in parsed if override.is_sweep_override()]


def _hydra_directory(overrides: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Where a run has a directory of its own, Hydra's files go there too; those of a sweep are beside each other."""
    given = dict(word.split("=", 1) for word in overrides if "=" in word)
    own = given.get("resume") or given.get("run_dir")
    if own in (None, "", "null") or "hydra.run.dir" in given or {"-m", "--multirun"} & set(flags):
        return []
    return [f"hydra.run.dir={own}"]


def check(overrides: Sequence[str], *, program: str = _PROGRAM) -> None:
    """Ends the program with an error for an unknown name or value, before anything is written."""
    checked: set[str] = set()
    unread: dict[str, None] = {}
    try:
        for combination in combinations(overrides):
            settings = compose(combination)
            if settings["resume"] is not None:
                settings = resumed(settings, combination)
            made = parse(settings)
            unread |= dict.fromkeys(not_read(combination, settings["agent"]))
            # Environments of a sweep are mostly the same.
            if repr(settings["env"]) not in checked and not made.env.startswith(_SLOW):
                checked.add(repr(settings["env"]))
                _check_env(made)
    except MISTAKES as error:
        sys.exit(f"{program}: {str(error).strip().splitlines()[0]}")
    for sentence in unread:
        print(f"{program}: {sentence}", file=sys.stderr)


def _check_env(made: RunSettings) -> None:
    """Builds the environment once; an exception of the user's code becomes an error message with its line."""
    try:
        env = make_env(made.env, **made.env_settings)
        check_task(prepare_env(env))
        env.close()
    except Exception as error:
        line, kind = own_line(error), type(error).__name__
        if isinstance(error, MISTAKES) and not line:
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in made.env_settings.items())
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{made.env} cannot be built with {given}: {kind}: {first}{line}"
        ) from error


def run(config: DictConfig) -> float:
    """Trains with a config; returns the last greedy return, for sweeps that optimise it."""
    tune_process()
    hydra_config = HydraConfig.get()
    settings = as_dict(config, hydra_config.overrides.task)
    if settings["resume"] is not None:
        settings = resumed(settings, hydra_config.overrides.task)
    else:
        settings["recipe"] = hydra_config.runtime.choices["env"]
    run_dir = Path(settings["resume"] or settings["run_dir"] or hydra_config.runtime.output_dir)
    if hydra_config.mode is not RunMode.MULTIRUN:
        with exit_with_a_sentence(run_dir):
            return _train(settings, run_dir)
    try:
        return _train(settings, run_dir)
    except Exception as error:
        # The other runs of the sweep are not stopped: this one's traceback is in its log, and Hydra ends with the
        # sentence. An error of a plain kind, since it may have to come out of another process.
        _log.exception("%s has failed", run_dir)
        raise RuntimeError(f"{run_dir}: {error}") from None


def _train(settings: dict[str, Any], run_dir: Path) -> float:
    trainer = build(settings, run_dir)
    if "switch_frames" in settings:
        # In numbers: a run that is resumed with a later end keeps its change.
        settings = {**settings, "switch_frames": parse(settings).switch_frames}
    stored = {key: value for key, value in settings.items() if key not in ("resume", "run_dir")}
    row = complete(trainer, stored, resume=settings["resume"] is not None)
    evaluated = f", greedy return {row['eval_return']:.3g}" if "eval_return" in row else ""
    print(f"{run_dir}: {int(row['frames']):,} frames{evaluated}")
    return row.get("eval_return", float("nan"))


def build(settings: dict[str, Any], run_dir: Path) -> Trainer:
    """Environment, agent and trainer from plain settings."""
    made = parse(settings)
    env_kwargs = dict(made.env_settings)
    seed_generators(made.train.seed)
    if made.switch_frames is not None:
        # Each environment counts its own steps, from the first one with a goal on.
        after = made.switch_frames - made.discovery_frames
        env_kwargs["switch_steps"] = max(1, after // made.run.num_envs)
    env = make_env(
        made.env,
        batch_size=made.run.num_envs,
        seed=made.train.seed,
        visits="counts",
        **env_kwargs,
    )
    # The networks are made where they stay; the environment and the replay buffer are on the host.
    with torch.device(made.run.device):
        agent = make_agent(made.agent, env, **made.agent_settings)
    if made.run.compile:
        agent.compile_networks(mode=None if made.run.compile is True else made.run.compile)
    logger = dict(made.logger_settings)
    if made.logger == "wandb":
        logger["name"] = f"{made.env}_{made.agent}_{made.train.seed}"
    return make_trainer(
        agent,
        env,
        eval_episodes=made.run.eval_episodes,
        run_dir=run_dir,
        logger=made.logger,  # type: ignore[arg-type]  # checked by parse
        logger_settings=logger,
        **vars(made.train),
        **vars(made.collector),
    )


def resumed(composed: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The settings of the run to resume, and on top of them what the command line sets (a later end, say)."""
    folder = Path(composed["resume"])
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"resume={folder} is not the directory of a run: it has no config.yaml")
    plain = load_settings(path)
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.create(plain), resolve=True)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read, restore it from a copy: {reason}") from None
    stored = stored if isinstance(stored, dict) else {}
    agent, env, recipe = stored.get("agent"), stored.get("env"), stored.get("recipe")
    if not isinstance(agent, dict) or not isinstance(env, dict):
        raise ValueError(
            f"{path} names no agent or no environment: a run that was started from Python with its own is resumed "
            "there, by train(…, resume=True)"
        )
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key, value = override.key_or_group, None if override.is_delete() else override.value()
        if key == "agent":
            _refuse(folder, "agent", agent["name"], composed["agent"]["name"])
        elif key == "env":
            pairs = (recipe, value) if recipe else (env["name"], composed["env"]["name"])
            _refuse(folder, "env", *pairs)
        elif key == "logger":
            stored["logger"] = composed["logger"]
        elif key in ("preset", "speed"):
            usual = "ours" if key == "preset" else "default"
            _refuse(folder, key, stored.get(key, usual), composed[key])
        elif key in SHARED:
            if key in agent:
                agent[key] = value
        elif not key.startswith("hydra"):
            _set(stored, key.split("."), value, delete=override.is_delete())
    return {**stored, "resume": composed["resume"], "run_dir": None}


def _refuse(folder: Path, what: str, stored: Any, given: Any) -> None:
    if stored != given:
        raise ValueError(
            f"resume={folder} has {what}={stored}, not {what}={given}: leave {what} out, or start a new run"
        )


def _set(settings: dict[str, Any], keys: list[str], value: Any, *, delete: bool) -> None:
    for key in keys[:-1]:
        settings = settings.setdefault(key, {})
    if delete:
        settings.pop(keys[-1], None)
    else:
        settings[keys[-1]] = value
