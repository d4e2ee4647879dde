"""`python -m goodput` is the command `goodput`."""

import sys

from goodput.cli import main

sys.exit(main())
