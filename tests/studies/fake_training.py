"""Trains nothing: writes its log row by row, resumes where it was, crashes or hangs when told to.

``faults`` in its folder's parent's parent (the environment's) has what happens, ``<agent> <seed> crash|hang|stubborn``;
a file ``mended`` beside it makes all well.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    folder = Path((given.get("resume") or given["run_dir"]).strip("'"))
    total, pause = int(given["total_frames"]), float(given.get("pause", 0))
    resumed = "resume" in given
    log = folder / "progress.csv"
    if not resumed:
        if log.exists():
            sys.exit(f"{folder} already holds a run")
        agent = {"name": given["agent"]}
        config = {"agent": agent, "seed": int(given["seed"]), "total_frames": total}
        (folder / "config.yaml").write_text(json.dumps(config))
        (folder / "run.json").write_text("{}")
        log.write_text("frames,eval_return,seconds\n")
    (folder / "checkpoints").mkdir(exist_ok=True)
    faults = folder.parents[1] / "faults"
    fault = None
    if faults.is_file() and not (folder.parents[1] / "mended").exists():
        for line in faults.read_text().splitlines():
            agent, seed, kind = line.split()
            if (agent, seed) == (given["agent"], given["seed"]):
                fault = kind
    done = len(log.read_text().splitlines()) - 1
    with (folder / "starts").open("a") as file:
        file.write("resumed\n" if resumed else "fresh\n")
    for frame in range(10 * done + 10, total + 1, 10):
        with log.open("a") as file:
            file.write(f"{frame},{frame / total},{frame / 1000}\n")
        time.sleep(pause)
        if fault == "crash":
            raise RuntimeError("the lamp went out")
        if fault == "stubborn":
            # Deaf to Ctrl-C, and so is what it has started.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(folder)])
        if fault in ("hang", "stubborn"):
            (folder / "hanging").touch()
            time.sleep(600)
    sys.stdout.write("all went well\n")


if __name__ == "__main__":
    main()
