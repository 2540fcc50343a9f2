"""Studies: declared grids of runs, where they are run, and what they leave.

``dceo study`` lists, runs, watches and draws them.
"""

from torchrl_dceo.studies.declaration import Grid, Job, Method, Preset, Script, Study

__all__ = ["Grid", "Job", "Method", "Preset", "Script", "Study"]
