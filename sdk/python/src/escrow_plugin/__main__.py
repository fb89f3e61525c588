"""`python3 -m escrow_plugin module:ClassName` serves a class."""

import sys

from .server import main

if len(sys.argv) != 2:
    raise SystemExit("usage: python3 -m escrow_plugin module:ClassName")
main(sys.argv[1])
