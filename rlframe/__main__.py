"""``python -m rlframe`` is the command ``rlframe``."""

import sys

from rlframe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
