"""Studies: declared grids of runs, where they are run, and what they leave.

``python -m torchrl_dceo.studies`` lists, runs, watches and draws them.
"""

from torchrl_dceo.studies.declaration import Grid, Job, Method, Preset, Script, Study

__all__ = ["Grid", "Job", "Method", "Preset", "Script", "Study"]
