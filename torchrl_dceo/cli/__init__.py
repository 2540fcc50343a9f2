"""The command ``dceo``: imports only the module of the requested command."""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Sequence

from torchrl_dceo.settings import choices

__all__ = ["COMMANDS", "main"]

# name -> (module:function, one line of help). The function accepts the arguments and returns an exit code.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": (
        "torchrl_dceo.cli.train:main",
        "train an agent: env=nine_rooms agent=dceo key=value …",
    ),
    "evaluate": ("torchrl_dceo.cli.runs:evaluate", "the greedy return of a run's agent"),
    "render": (
        "torchrl_dceo.cli.runs:render",
        "a film of a run's policy, or of one of its options",
    ),
    "plot": ("torchrl_dceo.cli.runs:plot", "draw the figures of runs again"),
    "compare": (
        "torchrl_dceo.cli.runs:compare_runs",
        "curves and tables of several runs, over seeds",
    ),
    "diagnose": (
        "torchrl_dceo.cli.runs:diagnose",
        "compare the parts of a run's options with exact ones",
    ),
    "study": ("torchrl_dceo.cli.study:main", "the paper's studies: list, run, status, figure"),
    "play": ("torchrl_dceo.envs.play:main", "play an environment by hand"),
    "list": ("torchrl_dceo.cli.runs:show_names", "the names of environments, agents and studies"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``dceo <command> …``; returns its exit code.

    Examples:
        >>> from torchrl_dceo.cli import main
        >>> main(["plat"])
        2
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
        print(
            "usage: dceo <command> …\n",
            *lines,
            "\ndceo <command> --help shows its options",
            sep="\n",
        )
        return 0 if given else 2
    if given[0] not in COMMANDS:
        print(f"dceo: unknown command {choices(given[0], list(COMMANDS))}", file=sys.stderr)
        return 2
    module, function = COMMANDS[given[0]][0].split(":")
    try:
        code = getattr(importlib.import_module(module), function)(given[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        return 1
    return code


def _reader_is_gone() -> bool:
    """Whether standard output is a closed pipe, as in ``dceo list | head``; then Python must not flush it at exit."""
    if not hasattr(select, "poll"):
        return False  # Windows
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    gone = any(event & select.POLLERR for _, event in output.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return gone
