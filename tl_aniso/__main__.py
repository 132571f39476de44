"""``python -m tl_aniso``: the command line."""

import sys

from tl_aniso.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
