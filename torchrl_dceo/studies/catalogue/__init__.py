"""Every study of the paper, and those of ours, as declarations."""

from __future__ import annotations

from torchrl_dceo.studies.catalogue.deep import (
    DEEP_COVERAGE,
    ONLINE,
    ONLINE_VS_TWO_PHASE,
    TWO_PHASE,
)
from torchrl_dceo.studies.catalogue.environments import (
    CUBE,
    LARGE_SCALE,
    NON_STATIONARY,
    OBJECTS,
)
from torchrl_dceo.studies.catalogue.experiments import (
    EIGENFUNCTIONS,
    OBJECTIVES,
    TABULAR_COVERAGE,
    TABULAR_RETURN,
    VISITATION,
)
from torchrl_dceo.studies.declaration import Study

__all__ = ["STUDIES"]

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        TABULAR_COVERAGE,
        TABULAR_RETURN,
        VISITATION,
        DEEP_COVERAGE,
        TWO_PHASE,
        ONLINE,
        ONLINE_VS_TWO_PHASE,
        OBJECTIVES,
        CUBE,
        NON_STATIONARY,
        OBJECTS,
        EIGENFUNCTIONS,
        LARGE_SCALE,
    )
}
"""The studies, in the order of the paper, by name."""
