"""The command: runs the checks over a URL, prints each result, and ends with a verdict.

Exit status 0: it conforms; 1: it does not; 2: the command was not understood.
"""

from __future__ import annotations

import argparse
import sys

from txnlog.errors import InvalidOption, UnsupportedFilesystem
from txnlog.storage import open_storage
from txnlog.testing.conformance.races import ROUNDS
from txnlog.testing.conformance.suite import Result, Suite, verdict

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    given = _parse(arguments)
    options = dict(_parse_option(option) for option in given.option)
    results = []
    try:
        suite = Suite(given.url, options, given.proxy, given.rounds)
        open_storage(given.url, options)
        for result in suite.run(lambda name: given.only in name):
            _say(_describe(result))
            results.append(result)
    except (InvalidOption, UnsupportedFilesystem) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    conforms, sentence = verdict(results)
    _say(f"{given.url} {sentence}")
    return 0 if conforms else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m txnlog.testing.conformance",
        description="Check whether a filesystem or server keeps what txnlog relies on.",
    )
    parser.add_argument("url", help="a folder below which files may be made and deleted")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a storage option, as txnlog.open takes it; nested ones are JSON",
    )
    parser.add_argument(
        "--proxy",
        default="",
        metavar="URL",
        help="the same folder through a proxy of yours that cuts connections: "
        "its http://host:port, or another URL of the folder",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"of the race (by default {ROUNDS})"
    )
    parser.add_argument("--only", default="", metavar="PART", help="checks whose names have this")
    return parser.parse_args(arguments)


def _parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        sys.stderr.write("--option takes NAME=VALUE\n")
        raise SystemExit(2)
    return name, value


def _describe(result: Result) -> str:
    name = result.check.replace("_", " ")
    detail = f": {result.detail}" if result.detail else ""
    return f"{_MARKS[result.state]:7} {name} ({result.took_s:.1f} s){detail}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
