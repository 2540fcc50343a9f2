from __future__ import annotations

import re
from importlib import resources

import pytest

from torchrl_dceo.analysis.figures import _AGENTS, _OTHERS
from torchrl_dceo.studies.report import markup as colours
from torchrl_dceo.studies.report.markup import contrast, in_the_dark

STYLE = (resources.files(colours.__package__) / "page_files" / "page.css").read_text()


@pytest.mark.parametrize("colour", [*_AGENTS.values(), *_OTHERS])
def test_every_agent_can_be_seen_in_the_dark(colour):
    assert contrast(in_the_dark(colour), colours._DARK) >= 4.5


def test_the_dark_ground_is_that_of_the_page():
    assert re.search(r"--ground: light-dark\(#\w+, (#\w+)\)", STYLE)[1] == colours._DARK


@pytest.mark.parametrize("name", ["ink", "quiet", "accent"])
def test_text_can_be_read_in_both_schemes(name):
    def pair(variable):
        return re.search(rf"--{variable}: light-dark\((#\w+), (#\w+)\)", STYLE).groups()

    for text, ground in zip(pair(name), pair("ground"), strict=True):
        assert contrast(text, ground) >= 4.5
