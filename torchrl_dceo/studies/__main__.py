"""``python -m torchrl_dceo.studies``."""

import sys

from torchrl_dceo.cli.study import main

if __name__ == "__main__":
    sys.exit(main())
