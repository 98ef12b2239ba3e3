"""`python -m morok` is the `morok` command."""

import sys

from morok.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
