"""Every command and every Python example of README.md and docs/ runs, as it is written there.

Only its length is changed: ``total_frames`` and presets are short, and it runs in an empty folder, with a finished run
in the place of ``<run directory>``. What is not run is listed here by what it says, with the reason; what takes more
than a few seconds is marked slow.
"""

from __future__ import annotations

import contextlib
import functools
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import torchrl_dceo.training
from torchrl_dceo.agents import make_agent
from torchrl_dceo.cli import main as dceo
from torchrl_dceo.envs import make_env
from torchrl_dceo.envs.miniworld_headless import why_not

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FRAMES = 1200  # enough for a few updates of every recipe that starts to learn at 1000

# A command that contains the pattern is not run.
NOT_RUN = {
    r"^(ray start|ray job)": "starts a cluster",
    r"^apt-get|^sudo ": "installs libraries of the system",
    r"^pip install (-c|-e|pre-commit)|^git clone|^python3? -m venv": "installs this checkout: done by make",
    r"--executor (slurm|ray)": "needs a cluster; the executors have tests of their own",
    r"collector=ray": "needs Ray's processes; tests/training/test_collection_ray.py starts them",
    r"--size paper": "weeks of processor time: its commands are checked when the catalogue is",
    r"^make (test|test-all|bench|chaos|mutants|miniworld|browser|clean)": "this suite, or longer: a target",
    r"^(mkdocs|make docs|make site)": "builds the site, which has a job of its own",
    r"^python (research|benchmarks)/": "minutes to hours; their short forms are tests/research and tests/benchmarks",
    r"^python docs/tools": "draws the images of these pages",
    r"^python -m torchrl_dceo\.studies\.experiments": "minutes to hours; tests/studies/experiments has short forms",
    r"^(dceo|python -m torchrl_dceo)[ .]\w*\.?play": "waits for keys; tests/envs/test_play.py presses them",
    r"seed=0,1,2,3,4,5,6,7,8,9": "forty runs in 3D; one of them is run from another line",
    r"^dceo study report": "needs a folder of results with its figures; tests/studies/report has one",
    r"^dceo study (run|status|figure) (?!online|<)": "hours; online's smoke form is run",
    r"^tensorboard |^wandb ": "a server for the browser",
}
# A command that contains the pattern takes more than a few seconds.
SLOW = [
    r"^dceo study (run|status|figure) online", r"montezuma", r"miniworld", r"^make demo", r"multi_async", r"n_jobs",
    r"--multirun", r"^python recipes/", r"^dceo diagnose", r"MiniGrid-",
]  # fmt: skip
# Names of commands within sentences: asked for their help.
NAMES = r"^(dceo|python -m torchrl_dceo)( (compare|evaluate|render|plot|study|study run|diagnose|train))?$"
PROGRAMS = ("dceo", "python", "make", "pip", "ray", "apt-get", "tensorboard", "mkdocs", "git")


class Command(NamedTuple):
    """A line of a page that a reader may copy."""

    page: str
    line: str

    def matches(self, patterns):
        return next((p for p in patterns if re.search(p, self.line)), None)


def commands(page):
    """The lines of its shell fences, of its indented blocks, and its code within sentences, where a program begins."""
    text = page.read_text(encoding="utf-8")
    found = []
    for language, body in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.M | re.S):
        if language in ("bash", "sh", "shell", "console"):
            found += body.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    blocks = re.findall(r"(?:^    [^\n]*\n)+", prose, re.M)
    found += [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found += re.findall(r"`((?:dceo|python) [^`\n]+)`", prose)
    for line in found:
        bare = re.split(r"\s#\s|\s+#\s", line.strip().removeprefix("$ "), maxsplit=1)[0].strip()
        words = bare.split()
        complete = words[1:] and "…" not in bare and "|" not in bare and bare != "python -m"
        if complete and words[0] in PROGRAMS:
            yield Command(str(page.relative_to(ROOT)), bare)


ALL = list(dict.fromkeys(c for page in PAGES for c in commands(page)))
# The same line of several pages is run once.
RUN = list({c.line: c for c in ALL if not c.matches(NOT_RUN)}.values())


def test_there_are_commands_and_no_exception_is_stale():
    assert len(ALL) > 40 and len(RUN) > 20
    programs = {c.line.split()[0] for c in ALL}
    assert {"dceo", "python", "make", "pip"} <= programs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was stopped, in the place of ``<run directory>``."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with contextlib.chdir(folder.parent):
        words = ["env=nine_rooms", "agent=dceo", "env.room_size=3", f"total_frames={FRAMES}"]
        assert dceo(["train", *words, "progress=false", f"run_dir={folder}"]) == 0
    return folder


def filled(line, finished, folder):
    """With a run, a map and a study where the page has a name for them."""
    run = folder / "copied_run"
    if re.search(r"<run dir(ectory)?>|<run>|resume=runs/|^dceo (evaluate|render|plot) runs/", line):
        shutil.copytree(finished, run)
    line = re.sub(r"<run dir(ectory)?>(\.\.\.)?|<run>", str(run), line)
    line = re.sub(r"resume=runs/\S+", f"resume={run}", line)
    line = re.sub(r"^(dceo (?:evaluate|render|plot)) runs/\S+", rf"\1 {run}", line)
    line = line.replace("results/<study>/<environment>", "results/mine/nine_rooms")
    line = re.sub(r"<(study|environment|name)>", "mine", line)
    line = line.replace("/scratch/", f"{folder}/")
    (folder / "my_map.txt").write_text("#######\n#S..#.#\n#.#.#.#\n#....G#\n#######\n")
    if line.startswith("dceo study figure online"):
        few = ["--size", "smoke", "--agents", "ddqn", "--seeds", "0", "--no-figure"]
        assert dceo(["study", "run", "online", *few]) == 0
    if "compare results/" in line and "collect" not in line:
        dceo(
            ["compare", "collect", str(finished), "--out", str(folder / "results/mine/nine_rooms")]
        )
    return line


def shortened(words):
    """The same with few frames; on a processor where there is no GPU, after the sentence that says so."""
    if words[0] == "study":
        return words if words[1] == "list" else [*words, "--size", "smoke"]
    if words[0] != "train" or "--cfg" in words or "--help" in words:
        return words
    kept = [word for word in words if not word.startswith("total_frames=")]
    if "device=cuda" in kept and not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="needs a GPU, and torch finds none here"):
            dceo(kept)
        kept.remove("device=cuda")
    if any(word.startswith("resume=") for word in kept):
        return [*kept, f"total_frames={FRAMES + 400}", "progress=false"]
    large = any("montezuma" in word or "miniworld" in word for word in kept)
    return [*kept, f"total_frames={200 if large else FRAMES}", "progress=false"]


def ran(words):
    """Runs ``dceo …`` in this process; whether it ended well."""
    try:
        return dceo(shortened(words)) == 0
    except SystemExit as end:
        return end.code in (0, None) or pytest.fail(str(end.code))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=pytest.mark.slow if c.matches(SLOW) else (), id=c.line[:70])
        for c in RUN
    ],
)
def test_it_runs(command, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "miniworld" in command.line and why_not() is not None:
        pytest.skip(str(why_not()))
    program, *words = shlex.split(filled(command.line, finished, tmp_path))
    if re.match(NAMES, command.line):
        with contextlib.suppress(SystemExit):  # argparse's way to end
            assert dceo([*[w for w in words if w not in ("-m", "torchrl_dceo")], "--help"]) == 0
    elif program == "make":
        target = words[0]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
        if target == "demo":
            script(["examples/demo.py"])
    elif program == "pip":
        assert_extras_exist(words)
    elif program == "dceo":
        assert ran(words)
    elif words[:2] == ["-m", "torchrl_dceo"]:
        assert ran(words[2:])
    elif words[0] == "recipes/representation.py":
        script(words)
    elif words[0].startswith("recipes/"):
        environment = f"env={Path(words[0]).stem}"
        given = shortened(["train", *words[1:], environment])[1:]
        given.remove(environment)  # the script sets it
        script([words[0], *given])
    else:
        script(words)


def script(words):
    saved = sys.argv
    sys.argv = words
    try:
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    except SystemExit as end:
        assert end.code in (0, None), end.code
    finally:
        sys.argv = saved


def assert_extras_exist(words):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        for extras in re.findall(r"torchrl-dceo\[([\w,]+)\]", word):
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), word


@pytest.mark.parametrize("line", [c.line for c in ALL if c.line.startswith("make ")])
def test_targets_exist(line):
    for target in re.findall(r"^make ([\w-]+)", line):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target


# Examples that are cut out of a whole one, or a pattern to fill in.
SKETCHES = {
    "main = QValueActor(net(actions)": "the heart of examples/compose.py, which tests/test_examples.py runs whole",
    "def make_mine(env, config)": "a pattern with ... to fill in; tests/agents has one filled in",
    "class MyConfig(LearnerConfig)": "the same",
}
LONG_EXAMPLES = ("run_tabular(",)


def examples():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fences = re.findall(r"^( *)```python[^\n]*\n(.*?)^ *```", text, re.M | re.S)
        code = [re.sub(rf"^{indent}", "", body, flags=re.M) for indent, body in fences]
        whole = [body for body in code if not any(sketch in body for sketch in SKETCHES)]
        slow = any(long in body for long in LONG_EXAMPLES for body in whole)
        if whole:
            marks = pytest.mark.slow if slow else ()
            yield pytest.param(whole, marks=marks, id=str(page.relative_to(ROOT)))


def setting():
    """What the examples of a page take for granted."""
    from torch import nn

    from torchrl_dceo.data import make_replay_buffer
    from torchrl_dceo.modules import RayleighRitz
    from torchrl_dceo.objectives import ALLOLoss, GeneralizedLaplacianLoss

    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0, visits="counts")
    agent = make_agent("dceo", env, num_options=2)
    replay = make_replay_buffer(1000, n_steps=5, num_streams=4, batch_size=16)
    replay.extend(env.rollout(60, break_when_any_done=False))
    replay.dumps("dataset")
    encoder = agent.objectives["reward"].encoder
    loss = ALLOLoss(encoder, successor="next")
    network = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 4))
    f = torch.randn(50, 4)
    return {
        "RayleighRitz": RayleighRitz, "GeneralizedLaplacianLoss": GeneralizedLaplacianLoss,
        "make_replay_buffer": make_replay_buffer, "env": env, "other_env": make_env("NineRooms", room_size=3),
        "agent": agent, "replay": replay, "encoder": encoder, "batch": replay.sample(), "loss": loss,
        "optimizer": torch.optim.Adam(loss.parameters()), "network": network, "d": 4, "f": f, "torch": torch,
        "f_successor": f + 0.1, "data": env.rollout(20, break_when_any_done=False), "make_env": make_env,
        "make_agent": make_agent,
    }  # fmt: skip


@pytest.mark.parametrize("whole", examples())
def test_python_examples_run(whole, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    long_train, long_fit = torchrl_dceo.training.train, torchrl_dceo.training.fit

    @functools.wraps(long_train)
    def train(*args, **kwargs):
        given = {
            **kwargs,
            "total_frames": 200,
            "progress": False,
            "checkpoint_period": 100,
            "log_period": 100,
        }
        return long_train(*args, **given)

    monkeypatch.setattr(torchrl_dceo.training, "train", train)
    monkeypatch.setattr(
        torchrl_dceo.training,
        "fit",
        lambda agent, replay, n, **kw: long_fit(agent, replay, 3, **kw),
    )
    page = request.node.callspec.id
    given = {"__name__": "page", **setting()}
    for number, body in enumerate(whole):
        # The blocks of a tutorial are one script.
        names = given if page.startswith("docs/tutorials/") else dict(given)
        exec(compile(body, f"{page}, example {number}", "exec"), names)
