from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo._fast import batches_ahead, moved, tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env


def test_sets_the_threads():
    tune_process(2)
    assert torch.get_num_threads() == 2
    tune_process()
    assert torch.get_num_threads() == 1


def test_a_bad_number_of_threads_is_named():
    with pytest.raises(ValueError, match="num_threads must be at least 1, got 0"):
        tune_process(0)


def test_nothing_is_hidden_from_the_process():
    code = """
import sys
before = dict(sys.modules)
from torchrl_dceo._fast import batches_ahead, moved, tune_process
tune_process()
print(sorted(name for name, module in sys.modules.items() if module is None and name not in before))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pandas" not in result.stdout and result.returncode == 0, result.stderr


def test_freed_memory_is_kept():
    """The tensors of a training step, freed and made again, need no new pages from the kernel."""
    code = """
import resource, sys, torch
from torchrl_dceo._fast import batches_ahead, moved, tune_process
if sys.argv[1] == "tuned":
    tune_process()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        activations = [torch.ones(2**18) for _ in range(64)]
        del activations
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
"""
    plain, tuned = (
        int(
            subprocess.run(
                [sys.executable, "-c", code, mode], capture_output=True, text=True
            ).stdout
        )
        for mode in ("plain", "tuned")
    )
    # Untuned, glibc gives the memory back a few times before it adapts; tuned, each page is fetched once.
    assert tuned < 0.75 * plain


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages"
)
def test_the_heap_asks_for_huge_pages():
    code = """
import torch
from torchrl_dceo._fast import batches_ahead, moved, tune_process
tune_process()
tensor = torch.ones(2**22)
address = tensor[2**21 :].data_ptr()  # its middle: it may begin on an older page
for line in open("/proc/self/smaps"):
    first, *rest = line.split()
    if not first.endswith(":"):  # the header of an area
        begin, end = (int(part, 16) for part in first.split("-"))
    if first == "VmFlags:" and begin <= address < end:
        print("hg" in rest)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr


def make_batch(seed: int) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (4, 3), dtype=torch.uint8, generator=generator)
    return TensorDict({"pixels": pixels, "next": {"reward": torch.rand(4, 1)}}, [4])


def test_a_batch_goes_to_another_device_as_one_block(monkeypatch):
    consolidated = []
    consolidate = TensorDict.consolidate

    def noted(self, **settings):
        consolidated.append(settings)
        return consolidate(self, **settings)

    monkeypatch.setattr(TensorDict, "consolidate", noted)
    batch = make_batch(0)
    assert moved(batch, torch.device("cpu")) is batch and not consolidated
    there = moved(batch, torch.device("meta"))
    assert consolidated == [{"pin_memory": False}]
    assert there["pixels"].dtype == torch.uint8 and there["next", "reward"].shape == (4, 1)
    assert {value.device.type for value in there.values(True, True)} == {"meta"}
    # What a loss writes.
    there["next", "representation"] = torch.zeros(4, 2, device="meta")
    assert ("next", "representation") not in batch.keys(True)


def test_batches_drawn_ahead_are_the_same_in_the_same_order():
    drawn = []

    def sample():
        drawn.append(threading.current_thread().name)
        return make_batch(len(drawn))

    for i, batch in enumerate(batches_ahead(sample, 3, torch.device("cpu")), 1):
        assert torch.equal(batch["pixels"], make_batch(i)["pixels"])
    assert len(drawn) == 3 and all(name.startswith("batches") for name in drawn)
    assert not list(batches_ahead(sample, 0, torch.device("cpu"))) and len(drawn) == 3


def test_an_error_of_the_thread_is_raised():
    def sample():
        raise ValueError("nothing to draw")

    with pytest.raises(ValueError, match="nothing to draw"):
        next(batches_ahead(sample, 2, torch.device("cpu")))


def test_updates_with_batches_drawn_ahead_are_the_same():
    """As on an accelerator, with the CPU in its place."""
    states = []
    for ahead in (True, False):
        torch.manual_seed(0)
        env = make_env("NineRooms", room_size=3, seed=0, batch_size=[4])
        agent = make_agent("dceo", env)
        replay = agent.replay.make(env, 400, seed=0)
        replay.extend(env.rollout(30, break_when_any_done=False))
        if ahead:
            batches = batches_ahead(replay.sample, 3, torch.device("cpu"))
            for batch in batches:
                agent.update(batch, agent.phases[0])
        else:
            list(agent.updates(replay, agent.phases[0], 3))
        states.append([*agent.state_dict().values(), replay.sample()["pixels"]])
    for one, other in zip(*states, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
