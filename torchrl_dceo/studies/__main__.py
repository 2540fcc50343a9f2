"""``python -m torchrl_dceo.studies``."""

import sys

from torchrl_dceo.studies.cli import main

if __name__ == "__main__":
    sys.exit(main())
