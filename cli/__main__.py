"""``python -m txnlog.cli`` is the same as ``txnlog``."""

import sys

if not sys.flags.safe_path:
    # ``-m`` puts the working folder first, and a store may lie there: no module is loaded from it.
    del sys.path[0]

from txnlog.cli import main

main()
