"""``make mutants``: breaks the code on purpose, one place at a time, and runs the tests that must notice.

Each mutation of :mod:`mutants.catalogue` is applied alone to a copy of the tree, and the tests that it names are run
until the first failure. A mutation that no test notices has survived. Before that, the same tests are run on the copy
as it is: where one fails without any mutation, nothing would follow from its failing with one. Exit code 1 if more than
3 % survive, or a survivor has no explanation; 2 if a mutation cannot be applied or a test fails without one.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from mutants.catalogue import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
_COPIED = (
    "torchrl_dceo",
    "tests",
    "examples",
    "recipes",
    "docs",
    "README.md",
    "pyproject.toml",
    "conftest.py",
)
_TIMEOUT = 300  # seconds; an endless loop counts as noticed
_ENOUGH = 0.97
_PARTS = ("collectors", "data", "envs", "modules", "objectives")  # of TorchRL


@dataclass(frozen=True)
class Outcome:
    """What the tests made of one mutation."""

    mutation: Mutation
    caught: bool
    seconds: float
    first_failure: str


def check(mutations: Sequence[Mutation]) -> list[str]:
    """Sentences about mutations that cannot be applied: the code has changed since they were written."""
    problems = []
    names = [mutation.name for mutation in mutations]
    for mutation in mutations:
        name = mutation.name
        if names.count(name) > 1:
            problems.append(f"{name}: the name is taken twice")
        if mutation.old == mutation.new:
            problems.append(f"{name}: it changes nothing")
        path = ROOT / "torchrl_dceo" / mutation.file
        if not path.is_file():
            problems.append(f"{name}: there is no {mutation.file}")
        else:
            found = path.read_text().count(mutation.old)
            if found != 1:
                problems.append(f"{name}: {mutation.old!r} stands {found} times in {mutation.file}")
        if not mutation.tests:
            problems.append(f"{name}: it names no test")
        for test in mutation.tests:
            file, *inside = test.split("::")
            path = ROOT / "tests" / file
            missing = not path.is_file() or (
                inside and f"def {inside[-1]}(" not in path.read_text()
            )
            if missing:
                problems.append(f"{name}: there is no {test}")
    return problems


def _pytest(tree: Path, tests: Sequence[str], output: Path) -> None:
    """What the forked process does: the tests of the copy, with its output in a file; its exit code is pytest's."""
    os.setsid()  # so that a timeout ends the processes that the tests started, too
    with output.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    sys.path[:] = [
        str(tree),
        *(p for p in sys.path if p and not Path(p).is_relative_to(ROOT / "tests")),
    ]
    sys.path[:] = [p for p in sys.path if Path(p) != ROOT]
    os.environ["PYTHONPATH"] = str(tree)
    for name in [name for name in sys.modules if name.split(".")[0] == "mutants"]:
        del sys.modules[name]
    import pytest

    options = ["-q", "-x", "-m", "not slow", "--no-header", "-p", "no:cacheprovider"]
    code = pytest.main([*options, *(str(Path("tests") / test) for test in tests)])
    sys.stdout.flush()
    os._exit(int(code))


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[bool, str]:
    """Whether some test of a copy fails, and the first that does.

    The process is forked from this one, which has torch and TorchRL loaded but nothing of the package: importing them
    takes longer than most of the tests.
    """
    output = tree / "pytest.txt"
    process = multiprocessing.get_context("fork").Process(
        target=_pytest, args=(tree, tests, output)
    )
    process.start()
    process.join(_TIMEOUT)
    if process.exitcode is None:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return True, "timeout"
    text = output.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # 1: a test failed; 2: a module could not even be imported. Anything else is no verdict of the tests.
    if process.exitcode not in (0, 1, 2):
        raise RuntimeError(f"pytest of {list(tests)} ended with {process.exitcode}: {text[-500:]}")
    first = lines[0].split(" - ")[0].partition(" ")[2] if lines else ""
    return process.exitcode != 0, first.removeprefix("tests/")


def run(mutation: Mutation, tree: Path) -> Outcome:
    """Applies a mutation to a copy of the tree, runs its tests, and takes it back."""
    path = tree / "torchrl_dceo" / mutation.file
    original = path.read_text()
    started = time.monotonic()
    path.write_text(original.replace(mutation.old, mutation.new))
    try:
        caught, first = run_tests(tree, mutation.tests)
    finally:
        path.write_text(original)
    return Outcome(mutation, caught, time.monotonic() - started, first)


def _copy(tree: Path) -> Path:
    tree.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, tree / name)
    return tree


def run_all(mutations: Sequence[Mutation], jobs: int) -> list[Outcome]:
    """Runs every mutation, ``jobs`` at a time, each job in a copy of its own.

    Raises:
        RuntimeError: if a test fails on the code as it is.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trees: Queue[Path] = Queue()
        for job in range(jobs):
            trees.put(_copy(Path(scratch) / str(job)))

        def in_a_tree(function, argument):
            tree = trees.get()
            try:
                return function(argument, tree)
            finally:
                trees.put(tree)

        def as_it_is(file: str, tree: Path) -> None:
            started = time.monotonic()
            failed, first = run_tests(tree, by_file[file])
            if failed:
                raise RuntimeError(f"{first or file} fails without any mutation")
            print(f"passes   {time.monotonic() - started:5.0f} s  {file}", flush=True)

        def one(mutation: Mutation) -> Outcome:
            outcome = in_a_tree(run, mutation)
            word = "caught  " if outcome.caught else "SURVIVED"
            print(
                f"{word} {outcome.seconds:5.0f} s  {mutation.name}  {outcome.first_failure}",
                flush=True,
            )
            return outcome

        by_file: dict[str, list[str]] = {}
        for test in dict.fromkeys(test for mutation in mutations for test in mutation.tests):
            by_file.setdefault(test.partition("::")[0], []).append(test)
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(lambda file: in_a_tree(as_it_is, file), by_file):
                pass
            return list(pool.map(one, mutations))


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = ["| mutation | file | outcome | first test that failed |", "|---|---|---|---|"]
    for outcome in outcomes:
        mutation = outcome.mutation
        noticed = f"`{outcome.first_failure}`" if outcome.caught else mutation.why_it_may_survive
        word = "caught" if outcome.caught else "survived"
        rows.append(f"| {mutation.name} | `{mutation.file}` | {word} | {noticed} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument(
        "--only", default="", help="only mutations whose name or file contains this"
    )
    parser.add_argument("--check", action="store_true", help="only see whether each can be applied")
    parser.add_argument("--table", type=Path, help="where the outcomes are written as a table")
    options = parser.parse_args()
    mutations = [m for m in MUTATIONS if options.only in m.name or options.only in m.file]
    problems = check(mutations)
    if not mutations:
        problems = [f"no mutation's name or file contains {options.only!r}"]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    if options.check:
        print(f"{len(mutations)} mutations can be applied")
        return 0
    _load()
    started = time.monotonic()
    try:
        outcomes = run_all(mutations, options.jobs)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    survivors = [outcome.mutation for outcome in outcomes if not outcome.caught]
    rate = 1 - len(survivors) / len(outcomes)
    minutes = (time.monotonic() - started) / 60
    caught = len(outcomes) - len(survivors)
    print(f"\n{caught} of {len(outcomes)} mutations caught ({rate:.1%}) in {minutes:.0f} min")
    for mutation in survivors:
        print(f"survivor: {mutation.name}: {mutation.why_it_may_survive or 'NOT EXPLAINED'}")
    if options.table is not None:
        options.table.write_text(table(outcomes))
    unexplained = any(not mutation.why_it_may_survive for mutation in survivors)
    return int(unexplained or rate < _ENOUGH)


def _load() -> None:
    """Imports what all tests need, once, and nothing of the package."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in ("numpy", "pytest", "torch", *(f"torchrl.{part}" for part in _PARTS)):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
