"""`python -m headgate` is the command line."""

import sys

from headgate._cli.program import main

if __name__ == "__main__":
    sys.exit(main())
