"""Fixtures of all tests. A whole run shares one real cluster and one Pub/Sub emulator, if they exist."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from provisioner.lab.cloud.compute.settings import Switches
from tests.hostile import figures
from tests.support.checks import simulators
from tests.support.checks.attendance import attend
from tests.support.checks.simulators import Notes
from tests.support.clouds import pubsub_emulator
from tests.support.clouds.switches import ASSUMED, EACH, FLIPPED, assume
from tests.support.schedulers.slurm import NO_SLURM, SlurmCluster, is_installed

if TYPE_CHECKING:
    from tests.kube.cluster import Cluster, GivenCluster
    from tests.kube.proxy import Proxy
    from tests.kube.space import Space
    from tests.ray.head import Head

for ending in (signal.SIGINT, signal.SIGTERM):
    signal.signal(ending, signal.default_int_handler)
"""Both signals end pytest as Ctrl-C does: fixtures stop the servers that they started. A shell starts its background
processes with SIGINT ignored, and every program that a test starts would inherit that."""

settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
"""The same examples in each run, however busy the machine is: a change fails a test, chance does not."""

NO_CLUSTER = "needs a real Kubernetes API server: run 'make test-kube'"

pytest.register_assert_rewrite("tests.conformance", "tests.chaos")
"""A failed assertion in these packages shows both sides, as in a test."""

# The official client costs every run of pytest a second: only what needs it imports it.

attend()  # before any test module imports one


@pytest.fixture(scope="session")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notes]:
    """Collect the errors in responses of simulated Compute APIs, in this process and in its children."""
    made = Notes(tmp_path_factory.mktemp("responses"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in simulators.surroundings(made.directory).items():
            patch.setenv(name, value)
        yield made
    _hold(made)


@pytest.fixture(autouse=True)
def googles_schema(notes: Notes) -> Iterator[None]:
    """Fail the test if a simulated Compute API has given a response that Google's API cannot give."""
    yield
    _hold(notes)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Restore the logging after a test, because a command in this process logs to the test's stderr, which is closed at
    the end of the test."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    root.setLevel(level)


def _hold(notes: Notes) -> None:
    problems = notes.take_faults()
    assert not problems, "\n".join(problems[:20])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--flip", choices=[*FLIPPED], help="flip one undocumented behaviour of Compute Engine")


def pytest_xdist_auto_num_workers() -> int:
    """Return twice the number of processors, because tests spend half of their time waiting."""
    return len(os.sched_getaffinity(0)) * 2


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--flip"):
        patch = pytest.MonkeyPatch()
        config.add_cleanup(patch.undo)
        assume(FLIPPED[name], patch)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """If a test failed and then passed when it was run again, print its whole failure, because such a failure is hard
    to reproduce.

    Also write these failures to the file that PYTEST_AGAIN names, by the test's id.
    """
    stats = terminalreporter.stats
    passed = {report.nodeid for report in stats.get("passed", []) if report.when == "call"}
    again = {report.nodeid: report for report in stats.get("rerun", []) if report.nodeid in passed}
    if path := os.environ.get("PYTEST_AGAIN"):
        Path(path).write_text(json.dumps({test: _last_line(report) for test, report in again.items()}))
    for test, report in again.items():
        terminalreporter.write_line(f"Passed only when run again: {test}: {_last_line(report)}")
        terminalreporter.write_line(f"{report.longreprtext}\n{report.capstderr}")
    figures.show(terminalreporter)


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip()[:500]


@pytest.fixture(params=EACH)
def switches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Switches:
    """Set the switches of undocumented behaviours. During the test, each simulated Compute Engine has these switches by
    default. Return the switches."""
    if request.param:
        assume(ASSUMED[request.param], monkeypatch)
    return Switches()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report the same file and line for all tests that are skipped because a cluster or an emulator is missing. The
    summary then shows these tests in one line."""
    report = yield
    lacking = (NO_CLUSTER, pubsub_emulator.NO_EMULATOR)
    if report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(lacking):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def any_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | GivenCluster]:
    """The cluster that TEST_KUBECONFIG names, or a cluster that the tests start from KUBEBUILDER_ASSETS."""
    from tests.kube.cluster import GivenCluster

    if given := os.environ.get("TEST_KUBECONFIG"):
        yield GivenCluster(Path(given))
        return
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        pytest.skip(NO_CLUSTER)
    from tests.kube.build import BuildError, assets
    from tests.kube.cluster import Cluster

    try:
        programs = assets(os.environ)
    except BuildError as error:
        pytest.fail(str(error))
    with Cluster(programs) as cluster:
        yield cluster
    if request.session.testsfailed:
        print(f"\nThe cluster's logs: {cluster.directory}", file=sys.stderr)
    else:
        cluster.forget()


@pytest.fixture
def cluster(any_cluster: Cluster | GivenCluster) -> Cluster:
    """A cluster that the tests have started. Therefore a test may remove its nodes and kill its API server."""
    from tests.kube.cluster import GivenCluster

    if isinstance(any_cluster, GivenCluster):
        pytest.skip("needs a cluster of its own, not the one that TEST_KUBECONFIG names")
    return any_cluster


@pytest.fixture
def space(any_cluster: Cluster | GivenCluster) -> Iterator[Space]:
    """An empty namespace in a real cluster."""
    from tests.kube.space import Space

    with Space(any_cluster.admin) as made:
        yield made


@pytest.fixture(scope="session")
def state_kinds(any_cluster: Cluster | GivenCluster) -> Iterator[None]:
    """Define the custom resources of the state on the API server, and remove them afterwards."""
    from tests.kube.kit import define_state_kinds

    admin = any_cluster.admin
    names = define_state_kinds(admin)
    yield
    for name in names:
        admin.delete(name)


@pytest.fixture
def proxy(space: Space) -> Iterator[Proxy]:
    """A proxy before the API server. A test can make the proxy fail."""
    from tests.kube.proxy import Proxy

    with Proxy(space.admin.server, space.admin.ca) as made:
        yield made


@pytest.fixture(scope="session")
def pubsub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the Pub/Sub emulator that PUBSUB_EMULATOR_HOST names, or of one that the tests start."""
    if given := os.environ.get("PUBSUB_EMULATOR_HOST"):
        yield given
        return
    program = pubsub_emulator.program()
    if program is None:
        pytest.skip(pubsub_emulator.NO_EMULATOR)
    with pubsub_emulator.running(program, tmp_path_factory.mktemp("pubsub") / "emulator.log") as address:
        yield address


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A Slurm cluster with slurmdbd."""
    if not is_installed():
        pytest.skip(NO_SLURM)
    cluster = SlurmCluster(accounting=True)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def ray_python() -> Path:
    """The Python that has Ray."""
    from tests.kube.build import BuildError
    from tests.ray.build import python

    try:
        return python(os.environ)
    except BuildError as error:
        pytest.skip(f"needs Ray: {error}")


@pytest.fixture(scope="session")
def ray_head(ray_python: Path) -> Iterator[Head]:
    """A Ray cluster of one node."""
    from tests.ray.head import Head

    with Head(ray_python) as head:
        yield head
