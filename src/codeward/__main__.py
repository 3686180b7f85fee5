"""``python -m codeward``: the command."""

import sys

from codeward.cli import main

if __name__ == "__main__":
    sys.exit(main())
