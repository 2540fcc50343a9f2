"""Studies: grids of runs, their execution and their results.

The command is ``dceo study``.
"""

from torchrl_dceo.studies.declaration import Grid, Job, Method, Preset, Script, Study

__all__ = ["Grid", "Job", "Method", "Preset", "Script", "Study"]
