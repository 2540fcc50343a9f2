"""Exact spectra, metrics that compare learned representations and options with them, and the figures of a run."""

from torchrl_dceo.analysis.figures import save_rollout_gif
from torchrl_dceo.analysis.figures.curves import Progress, draw_learning_curve, read_progress
from torchrl_dceo.analysis.figures.maps import draw_eigenfunctions, draw_options, draw_visits
from torchrl_dceo.analysis.figures.run import draw_rollout, draw_run, map_figures, rollout_frames
from torchrl_dceo.analysis.run_files import RunAnalysis, load_analysis, save_analysis
from torchrl_dceo.analysis.spectra import Similarity, cosine_similarity
from torchrl_dceo.analysis.spectra.exact import exact_eigenfunctions
from torchrl_dceo.analysis.spectra.options import (
    OptionClimb,
    find_table_env,
    followed_eigenfunctions,
    greedy_path,
    option_climb,
    reachable_states,
    solved_option_values,
    state_values,
)
from torchrl_dceo.analysis.statistics import Aggregate, aggregate, interquartile_mean
from torchrl_dceo.analysis.statistics.improvement import (
    Improvement,
    improvements,
    pairwise_improvement,
    performance_profile,
    share_better,
)
from torchrl_dceo.analysis.statistics.learning_speed import (
    Adaptation,
    SampleEfficiency,
    adaptations,
    sample_efficiency,
)

__all__ = [
    "Adaptation",
    "Aggregate",
    "Improvement",
    "OptionClimb",
    "Progress",
    "RunAnalysis",
    "SampleEfficiency",
    "Similarity",
    "adaptations",
    "aggregate",
    "cosine_similarity",
    "draw_eigenfunctions",
    "draw_learning_curve",
    "draw_options",
    "draw_rollout",
    "draw_run",
    "draw_visits",
    "exact_eigenfunctions",
    "find_table_env",
    "followed_eigenfunctions",
    "greedy_path",
    "improvements",
    "interquartile_mean",
    "load_analysis",
    "map_figures",
    "option_climb",
    "pairwise_improvement",
    "performance_profile",
    "reachable_states",
    "read_progress",
    "rollout_frames",
    "sample_efficiency",
    "save_analysis",
    "save_rollout_gif",
    "share_better",
    "solved_option_values",
    "state_values",
]
