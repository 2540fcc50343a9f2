"""``python -m torchrl_dceo``: the command ``dceo``."""

import sys

from torchrl_dceo.cli import main

if __name__ == "__main__":
    sys.exit(main())
