"""The figures of the representation study."""

from __future__ import annotations

import pytest
import torch

from torchrl_dceo.analysis import exact_eigenfunctions
from torchrl_dceo.analysis.figures.curves import draw_similarity_curves
from torchrl_dceo.analysis.figures.maps import draw_comparison
from torchrl_dceo.envs import GridWorldEnv

SQUARE = GridWorldEnv("S...\n....\n....\n....")  # its second eigenvalue repeats


def test_rows_signs_and_numbers():
    values, exact = exact_eigenfunctions(SQUARE, 4)
    figure = draw_comparison(SQUARE.layout, exact, {"flipped": -exact, "zero": 0 * exact}, values)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[4:8] == ["1.000", "1.000*", "1.000*", "1.000"] and titles[8:] == [
        "0.000",
        "0.000*",
        "0.000*",
        "0.000",
    ]
    assert [figure.axes[i].get_ylabel() for i in (0, 4, 8)] == ["exact", "flipped", "zero"]
    # The sign is turned to that of the exact one: both panels show the same picture.
    above, below = (figure.axes[i].images[1].get_array() for i in (1, 5))
    assert (above == below).all()


def test_curves_have_the_mean_and_the_range_of_the_seeds():
    logs = [
        {"step": [1, 2], "cosine": [0.2, 0.8], "span": [0.5, 1.0]},
        {"step": [1, 2], "cosine": [0.4, 1.0], "span": [0.5, 1.0]},
    ]
    figure = draw_similarity_curves({"ALLO": logs})
    line = figure.axes[0].lines[0]
    torch.testing.assert_close(torch.as_tensor(line.get_ydata()), torch.tensor([0.3, 0.9]))
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(0.2) and band.max() == pytest.approx(1.0)
