"""The ``txnlog`` command: thin over the library, quick to start, read-only unless told otherwise.

Nothing is imported here that is not needed to say what is missing.
"""

from __future__ import annotations

import sys
from typing import NoReturn

_NEEDED = frozenset({"typer", "rich", "click", "shellingham", "markdown_it", "pygments"})
"""What the extra ``cli`` brings, with what those packages need in turn."""


def main() -> NoReturn:
    """The entry point: run the command line and exit with its code."""
    try:
        from txnlog.cli.run import run

        code = run()
    except ModuleNotFoundError as error:
        remedy = "install it"
        if (error.name or "").partition(".")[0] in _NEEDED:
            from txnlog.errors import how_to_install

            remedy = f"run: {how_to_install('cli')}"
        message = f"the command needs the package {error.name!r}, which is not installed; {remedy}"
        print(f"txnlog: {message}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
