"""Becomes ``app/__main__``: ``python3 -I -S <mount>/app`` runs the daemon."""

import sys

from daemon.__main__ import main

sys.exit(main())
