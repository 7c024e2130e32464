"""Tests on real servers, for `make test-stores` alone: what starts, and what becomes of figures.

Each module of ``servers/`` with a ``run`` is a server; ``LIES = True`` in it says that it must be
refused, ``S3 = True`` that it speaks S3's protocol, ``KNOWN_CLIENT = True`` that others are reached
by the same library, or all tests are made where it is. What the tests measure goes into
benchmarks/STORES.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.stores.servers import LISTENERS, CannotStart, StoreServer, tell
from tests.stores.stores_report import Report

_HERE = Path(__file__).parent
_REPORT = pytest.StashKey[Report]()
_ALONE = {"test_orchestrators", "test_roots_that_fail"}
"""Modules of which each test starts what it needs."""
_LONG = {"azurite", "hdfs", "hdfs_kerberos", "webhdfs", "test_hdfs_cluster", "test_real_trino"}
_LONG |= {"test_yarn"}
"""Groups that take minutes: begun last, they would be waited for alone."""
_OUTPUT = "report of servers"
"""What a process of xdist sends to the one that writes."""


def _modules() -> dict[str, ModuleType]:
    """The servers, by the names of their modules."""
    names = [path.stem for path in sorted((_HERE / "servers").glob("*.py"))]
    modules = {
        name: import_module(f"tests.stores.servers.{name}") for name in names if name != "__init__"
    }
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


_SERVERS = _modules()


def pytest_configure(config: pytest.Config) -> None:
    """Begin a report, and show what is waited for."""
    config.stash[_REPORT] = Report()
    capture = config.pluginmanager.getplugin("capturemanager")

    def show(line: str) -> None:
        # At once: of a process of xdist nothing else is shown before a test is over.
        with capture.global_and_fixture_disabled():
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    LISTENERS[:] = [show]


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder has the mark, and those of one server run in one process.

    Those that start their own begin first: most of them wait for long, and some can while others
    run. Then come those of servers that take long.
    """
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.stores)
            item.add_marker(pytest.mark.xdist_group(_server_of(item)))
    items.sort(key=lambda item: (item.path.stem not in _ALONE, _server_of(item) not in _LONG))


def _server_of(item: pytest.Item) -> str:
    """The name of its server's module, or of its own module, which starts what it needs.

    Of a test that starts what it needs itself its own name.
    """
    if item.path.stem in _ALONE:
        return item.name
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return str(params.get("server") or params.get("liar") or item.path.stem)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``server`` runs on each honest one, one that takes ``liar`` on the rest."""
    s3_alone = metafunc.definition.get_closest_marker("s3_servers") is not None
    alone = metafunc.definition.get_closest_marker("one_server")
    by_client = metafunc.definition.get_closest_marker("each_client") is not None
    for fixture, lies in (("server", False), ("liar", True)):
        if fixture in metafunc.fixturenames:
            names = [
                name
                for name, module in _SERVERS.items()
                if getattr(module, "LIES", False) == lies
                and (not s3_alone or getattr(module, "S3", False))
                and (alone is None or alone.args == (name,))
                and not (by_client and getattr(module, "KNOWN_CLIENT", False))
            ]
            metafunc.parametrize(fixture, names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """Takes what tests have measured of a server."""
    return request.config.stash[_REPORT]


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, report: Report
) -> Iterator[StoreServer]:
    """A real server; the tests of one that cannot be had are skipped, with the reason."""
    name: str = request.param
    begun_s = time.monotonic()
    tell(f"{name} begins")
    running = _SERVERS[name].run(tmp_path_factory.mktemp(name))
    try:
        started = running.__enter__()
    except CannotStart as why:
        report.missing[name] = str(why)
        pytest.skip(f"{name} cannot be started: {why}")
    try:
        report.begin(started)
        yield started
    finally:
        running.__exit__(None, None, None)
        tell(f"{name} is done after {time.monotonic() - begun_s:.0f} s")


liar = server


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What ran, and what could not be started and why."""
    for line in config.stash[_REPORT].summary():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No figure is kept for a server on which a test fails."""
    report = yield
    server = getattr(item, "funcargs", {}).get("server")
    if report.failed and isinstance(server, StoreServer):
        item.config.stash[_REPORT].failed.append(server.name)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a process of xdist has measured."""
    if error is None:
        node.config.stash[_REPORT].merge(Report(**node.workeroutput[_OUTPUT]))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep what was measured of servers on which all went well."""
    report = session.config.stash[_REPORT]
    sent = getattr(session.config, "workeroutput", None)
    if sent is not None:
        sent[_OUTPUT] = asdict(report)
    elif exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        report.write()
