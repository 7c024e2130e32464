"""``python -m txnlog.cli`` is the same as ``txnlog``."""

from txnlog.cli import main

main()
