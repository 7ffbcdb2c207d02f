"""install.sh of a bundle if other users can write to the prefix or the bundle, or have written to them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.bundles import shared, small, unpacked
from tests.support.hosts import UNPRIVILEGED_USER
from tests.support.installs import NEWER, PREFIX, Bundles, done, install, open_directory, open_root, versions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what belongs to another user is made"),
]
"""The tests are slow because they download packages from a package index."""

CALLER, OTHER_USER = UNPRIVILEGED_USER, UNPRIVILEGED_USER + 1
OLD = "1.0.0"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundles]:
    with open_directory() as directory:
        whole = unpacked(shared(tmp_path_factory), directory)
        yield Bundles(*(small(whole, directory, version) for version in (OLD, NEWER)))


@pytest.fixture
def root() -> Iterator[Path]:
    with open_root() as made:
        yield made


@pytest.fixture
def victim(root: Path) -> Path:
    """Return a directory with a file, both of which belong to the caller. No command may change them."""
    made = root.parent / "victim"
    made.mkdir()
    (made / "precious").write_text("precious")
    for path in (made, made / "precious"):
        os.chown(path, CALLER, CALLER)
    return made


def linked(path: Path, target: Path | str, owner: int = CALLER) -> None:
    """Make a symbolic link that belongs to ``owner``."""
    path.symlink_to(target)
    os.lchown(path, owner, owner)


def refused(directory: Path, *arguments: str, root: Path | None) -> str:
    """Run install.sh, which must refuse. Return the last line of its error output."""
    ended = install(directory, *arguments, root=root)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stderr.splitlines()[-1]


def whole(directory: Path) -> bool:
    return [path.name for path in directory.iterdir()] == ["precious"] and (directory / "precious").read_text() != ""


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["install", "upgrade", "rollback", "uninstall"])
@pytest.mark.parametrize("marked", [pytest.param(False, id="any directory"), pytest.param(True, id="like a version")])
def test_a_link_among_the_versions_is_removed_as_a_link(
    bundles: Bundles, root: Path, victim: Path, command: str, marked: bool
) -> None:
    done(bundles.old, "--scripts-only", root=root)
    done(bundles.new, "--scripts-only", root=root)
    if marked:
        (victim / "precious").rename(victim / "installed")
    link = root / PREFIX / "versions" / "0.0.1"
    linked(link, victim)
    done(bundles.new, command, root=root)

    assert not link.is_symlink()
    assert [path.read_text() for path in victim.iterdir()] == ["precious"]


@pytest.mark.parametrize("name", ["versions", "bin", ".lock"])
def test_a_link_in_the_place_of_what_is_made_there_is_refused(
    bundles: Bundles, root: Path, victim: Path, name: str
) -> None:
    prefix = root / PREFIX
    prefix.mkdir(parents=True)
    for path in (prefix, prefix.parent):
        os.chown(path, CALLER, CALLER)
    linked(prefix / name, victim / "precious" if name == ".lock" else victim)

    assert "is a link, which install.sh never makes" in refused(bundles.old, "--scripts-only", root=root)
    assert whole(victim)


def test_no_file_of_the_system_is_written_through_a_link(bundles: Bundles, root: Path, victim: Path) -> None:
    done(bundles.old, root=root)
    units, logrotate = root / "usr/lib/systemd/system", root / "etc/logrotate.d/provisioner"
    linked(units / "provisioner.service.new", victim / "precious")
    (units / "provisioner-backup.service").unlink()
    linked(units / "provisioner-backup.service", victim)
    logrotate.unlink()
    linked(logrotate, victim / "missing")
    done(bundles.new, root=root)

    assert whole(victim)
    files = (units / "provisioner.service", units / "provisioner-backup.service", logrotate)
    assert [path for path in files if path.is_symlink() or not path.is_file()] == []


def test_the_record_of_a_version_is_not_read_through_a_link(bundles: Bundles, root: Path, victim: Path) -> None:
    done(bundles.old, "--scripts-only", root=root)
    record = root / PREFIX / "versions" / OLD / "installed"
    record.rename(victim / "record")
    linked(record, victim / "record")

    assert "no version is installed" in done(bundles.old, "status", root=root)
    done(bundles.old, "--scripts-only", root=root)
    assert (versions(root), record.is_symlink()) == ([OLD], False)


# --- others who may write ---------------------------------------------------------------------------------------------


WEAK = [(0o775, CALLER), (0o777, CALLER), (0o755, OTHER_USER)]
"""Modes and owners of a directory that let other users write to it."""


@contextlib.contextmanager
def weakened(path: Path, mode: int, owner: int) -> Iterator[None]:
    before = path.stat()
    os.chown(path, owner, owner)
    path.chmod(mode)
    yield
    os.chown(path, before.st_uid, before.st_gid)
    path.chmod(before.st_mode)


@pytest.mark.parametrize("place", ["", "opt", PREFIX, f"{PREFIX}/versions", f"{PREFIX}/current/bin/provisioner"])
def test_a_prefix_that_others_may_write_is_refused_by_whatever_changes_it(
    bundles: Bundles, root: Path, place: str
) -> None:
    done(bundles.old, "--scripts-only", root=root)
    found = (root / place).resolve()
    for (mode, owner), command in itertools.product(WEAK, ("install", "upgrade", "rollback", "uninstall")):
        with weakened(found, mode, owner):
            words = refused(bundles.new, command, root=root)
            assert "version 1.0.0 runs" in done(bundles.new, "status", root=root)
        assert words.startswith(f"install.sh: {found}: users other than root and you may change it (owner "), words
        assert "chown it, chmod go-w it" in words

    assert versions(root) == [OLD]


def test_a_directory_of_the_system_that_others_may_write_is_refused(bundles: Bundles, root: Path) -> None:
    done(bundles.old, root=root)
    before = sorted(root.rglob("*"))
    for place in ("usr/lib/systemd/system", "usr/lib/tmpfiles.d", "usr/lib/sysusers.d", "etc/logrotate.d"):
        for command in ("install", "rollback", "uninstall"):
            with weakened(root / place, 0o777, CALLER):
                words = refused(bundles.new, command, root=root)
            assert words.startswith(f"install.sh: {root / place}: users other than root and you may change it (")

    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("place", ["..", ".", "wheelhouse", "vm/provisioner.service", "install.sh"])
def test_a_bundle_that_others_may_write_is_refused(bundles: Bundles, root: Path, place: str) -> None:
    with open_directory() as directory:
        made = Path(shutil.copytree(bundles.old, directory / "inner" / "bundle"))
        found = (made / place).resolve()
        for mode, owner in WEAK:
            with weakened(found, mode, owner):
                words = refused(made, root=root)
            assert words.startswith(f"install.sh: {found}: users other than root and you may change it (owner "), words

    assert list(root.iterdir()) == []


def test_a_place_behind_another_user_s_link_is_refused(bundles: Bundles, root: Path, victim: Path) -> None:
    with TemporaryDirectory() as shared_place:
        os.chmod(shared_place, 0o1777)
        linked(Path(shared_place, "mine"), victim, owner=OTHER_USER)
        words = refused(bundles.old, "--prefix", f"{shared_place}/mine", root=None)

    assert words.startswith(f"install.sh: {shared_place}/mine: users other than root and you may change it (")
    assert whole(victim)


def test_below_a_sticky_directory_the_first_directory_has_to_be_there(bundles: Bundles, root: Path) -> None:
    """In a directory such as /tmp, install.sh must refuse to make the first directory of the prefix, because another
    user could make it first. If this directory already exists and is the caller's, install.sh must accept it."""
    with TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o1777)
        words = refused(bundles.old, "--scripts-only", "--prefix", f"{place}/mine/p", root=None)
        assert words.startswith(f"install.sh: {place}: users other than root and you may change it (")
        assert list(place.iterdir()) == []

        (place / "mine").mkdir()
        os.chown(place / "mine", CALLER, CALLER)
        ended = install(bundles.old, "--scripts-only", "--prefix", f"{place}/mine/p", root=None)
        assert (ended.returncode, ended.stderr) == (0, "")


# --- what was not packed ----------------------------------------------------------------------------------------------


def more_wheels(bundle: Path) -> Path:
    return Path(shutil.copy(next((bundle / "wheelhouse").glob("tinydb*")), bundle / "wheelhouse" / "tinydb-99.whl"))


def a_unit(bundle: Path) -> Path:
    return Path(shutil.copy(bundle / "vm" / "provisioner.service", bundle / "vm" / "other.service"))


def a_name_of_two_lines(bundle: Path) -> Path:
    return Path(shutil.copy(bundle / "PYTHONS", bundle / "vm" / "provisioner.service\nVERSION"))


def a_link(bundle: Path) -> Path:
    (bundle / "share" / "LICENSE").unlink()
    (bundle / "share" / "LICENSE").symlink_to(bundle / "share" / "CHANGELOG.md")
    return bundle / "share" / "LICENSE"


@pytest.mark.parametrize("added", [more_wheels, a_unit, a_name_of_two_lines, a_link])
def test_a_bundle_with_more_than_its_sums_name_is_refused(
    bundles: Bundles, root: Path, added: Callable[[Path], Path]
) -> None:
    with open_directory() as directory:
        made = Path(shutil.copytree(bundles.old, directory / "bundle"))
        name = str(added(made).relative_to(made)).splitlines()[0]
        words = refused(made, root=root)

    assert f"{name} is not what was packed: unpack the bundle again" in words
    assert list(root.iterdir()) == []
