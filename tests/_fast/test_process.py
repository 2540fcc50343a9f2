from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchrl_dceo._fast import tune_process


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
from torchrl_dceo._fast import tune_process
tune_process()
print(sorted(name for name, module in sys.modules.items() if module is None and name not in before))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pandas" not in result.stdout and result.returncode == 0, result.stderr


def test_freed_memory_is_kept():
    """The tensors of a training step, freed and made again, need no new pages from the kernel."""
    code = """
import resource, sys, torch
from torchrl_dceo._fast import tune_process
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
from torchrl_dceo._fast import tune_process
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
