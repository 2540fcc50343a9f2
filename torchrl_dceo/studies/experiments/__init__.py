"""Experiments that are more than training runs: each a plain function and a command, ``python -m`` its module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from torchrl_dceo._fast import tune_process
from torchrl_dceo.settings import choices

__all__ = ["Parser", "run_command"]


class Parser(argparse.ArgumentParser):
    """A command line whose mistakes are one sentence.

    Examples:
        >>> from torchrl_dceo.studies.experiments import Parser
        >>> parser = Parser(prog="walk")
        >>> _ = parser.add_argument("--steps", type=int)
        >>> parser.parse_args(["--step", "3"])
        Traceback (most recent call last):
        SystemExit: walk: unknown option '--step' (did you mean '--steps'?); choose from -h, --help, --steps
    """

    def __init__(self, prog: str | None = None, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Reads the arguments; an option that is not known is refused with the one that may be meant."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            unknown = next((one for one in rest if one.startswith("-")), rest[0])
            self.error(f"unknown option {choices(unknown, list(self._option_string_actions))}")
        return options

    def error(self, message: str) -> NoReturn:
        """Ends the program with one sentence."""
        sys.exit(f"{self.prog}: {message}")


def run_command(
    module: str,
    commands: Mapping[str, tuple[Callable[[Parser], None], Callable[[argparse.Namespace], None]]],
) -> None:
    """The command line of a module of experiments: the name of one of them, then its options.

    Args:
        module (str): as ``python -m`` takes it.
        commands (mapping): for each name what adds its options to a parser, and what runs it.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in commands:
        known = list(commands)
        sys.exit(
            f"python -m {module} takes the name of an experiment first, got {choices(name, known)}"
        )
    add_options, experiment = commands[name]
    described = (experiment.__doc__ or "").splitlines()[0]
    parser = Parser(prog=f"{module.rpartition('.')[2]} {name}", description=described)
    add_options(parser)
    options = parser.parse_args(sys.argv[2:])
    tune_process()
    try:
        experiment(options)
    except (ValueError, FileNotFoundError, ImportError) as error:
        sys.exit(f"{name}: {error}")
