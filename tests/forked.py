"""Python commands in processes of their own, without the seconds that each would take to import torch and us.

A server imports once and forks for every command: a real process, with its own exit code, output and working directory.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGE = "torchrl_dceo"


def forked(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -W ignore <command>`` and waits: a script and its arguments, or ``-m torchrl_dceo`` and its words.

    Args:
        command (sequence of str or Path): what follows ``python -W ignore``.

    Keyword Args:
        cwd (path-like, optional): the working directory. Default: this process's.
        env (mapping, optional): the environment variables that differ.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        request = {"words": words, "cwd": str(cwd or Path.cwd()), "env": dict(env or {})}
        server = _server()
        server.stdin.write(json.dumps({**request, "out": str(out), "err": str(err)}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    def close() -> None:
        server.stdin.close()
        server.wait()

    atexit.register(close)
    return server


def _child(words: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """In the process of a command: never returns."""
    for path, handle in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), handle)
    os.chdir(cwd)
    os.environ.update(env)
    sys.path += env.get("PYTHONPATH", "").split(os.pathsep)
    code: object = 0
    try:
        if words[:2] == ["-m", PACKAGE]:
            sys.argv = [PACKAGE, *words[2:]]
            sys.path[0] = cwd
            runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path[0] = str(Path(words[0]).parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code or 0) if isinstance(code, int | None) else 1)


def main() -> None:
    """The server: a line of JSON for each command, and its exit code for an answer."""
    import torchrl_dceo.analysis.figures
    import torchrl_dceo.cli.runs
    import torchrl_dceo.cli.study
    import torchrl_dceo.cli.train  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            _child(**request)
        _, status = os.waitpid(process, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
