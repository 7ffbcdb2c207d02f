"""The container image under test, with a base and servers for its build.

A container of the image runs like a pod's container.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.support.hosts import ROOT
from tests.support.network.authority import Authority
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE, until

PACKAGES = ("python3", "python3-venv", "ca-certificates", "apt")
"""Packages that the base from a registry has in addition to Debian's essential packages."""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root of the source, and return its result."""
    return subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=580 * PATIENCE,
    )


def storage_with(driver: str, directory: Path) -> dict[str, str]:
    """Return the environment in which builders keep their images in a directory."""
    file = directory / "storage.conf"
    file.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n')
    return {"CONTAINERS_STORAGE_CONF": str(file)}


def driver_of(storage: dict[str, str]) -> str:
    """Return the storage driver of a storage directory."""
    return re.findall(r'driver = "(\w+)"', Path(storage["CONTAINERS_STORAGE_CONF"]).read_text())[0]


def forget(storage: dict[str, str]) -> None:
    """Remove all images of the storage, with the mount that the driver leaves."""
    run("buildah", "umount", "--all", **storage)
    run("buildah", "rm", "--all", **storage)
    run("buildah", "rmi", "--all", "--force", **storage)
    run("umount", Path(storage["CONTAINERS_STORAGE_CONF"]).parent / "graph" / driver_of(storage))


def debian(directory: Path) -> None:
    """Make the root of a base from the files of this host's packages, because no registry is available."""
    lines = run("dpkg-query", "-Wf", "${Package} ${Essential}\\n").stdout.splitlines()
    chosen = [*PACKAGES, *(line.removesuffix(" yes") for line in lines if line.endswith(" yes"))]
    without = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    needed = run("apt-cache", "depends", "--recurse", "--installed", *without, *chosen).stdout
    names = set(re.findall(r"(?m)^(\w\S*?)(?::\w+)?$", needed)) & {line.split()[0] for line in lines}
    listed = set(run("dpkg-query", "-L", *sorted(names)).stdout.splitlines())
    links = ("bin", "lib", "lib64", "sbin")
    for name in links:
        (directory / "usr" / name).mkdir(parents=True)
        (directory / name).symlink_to(f"usr/{name}")
    paths = [path.removeprefix("/") for path in sorted(listed) if not path.startswith("/usr/share/doc/")]
    there = [path for path in paths if os.path.lexists(f"/{path}") and path not in (".", *links)]
    wanted = directory / "wanted"
    wanted.write_text("".join(f"{path}\n" for path in there))
    copy = 'tar -c -C / --no-recursion -T "$1/wanted" | tar -x --keep-directory-symlink -C "$1"'
    copied = run("sh", "-c", copy, "sh", directory)
    assert (copied.returncode, copied.stderr) == (0, "")
    wanted.unlink()
    for name in ("opt", "root", "usr/local/bin"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")


class Index:
    """A package index over TLS with the wheels of a directory. It records the paths that clients request. The object is
    a context manager."""

    def __init__(self, wheels: Path, authority: Authority) -> None:
        for wheel in list(wheels.iterdir()):
            place = wheels / "simple" / re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
            place.mkdir(parents=True, exist_ok=True)
            wheel.rename(place / wheel.name)
        self.asked = asked = set[str]()

        class Handler(SimpleHTTPRequestHandler):
            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                asked.add(self.path)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(wheels)))
        self._server.socket = authority.context("localhost").wrap_socket(self._server.socket, server_side=True)
        self.address = f"https://localhost:{self._server.server_port}/simple"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class Registry:
    """A registry of images with TLS and a login. It records the requests of clients. The object is a context
    manager."""

    USER, PASSWORD = "builder", "hunter2"
    LOGINS = f"{USER}:$2b$05$qUfIPmtBc.kZgZab/DqaTuOP4t8AtQA8OgjNWrNg85O3Bp9Ghsf3S\n"
    """Line of the password file: the user and the bcrypt hash of the password."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self._directory, self._authority = directory, authority
        (port,) = free_ports(1)
        self.name = f"localhost:{port}"
        """Host and port of the registry, with which the names of its images begin."""
        key, certificate = authority.signed("localhost")
        files = {name: directory / name for name in ("key.pem", "certificate.pem", "logins")}
        for file, content in zip(files.values(), (key, certificate, self.LOGINS.encode()), strict=True):
            file.write_bytes(content)
        tls = {"key": str(files["key.pem"]), "certificate": str(files["certificate.pem"])}
        settings = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(directory / "blobs")}},
            "http": {"addr": f"127.0.0.1:{port}", "tls": tls},
            "auth": {"htpasswd": {"realm": "bank", "path": str(files["logins"])}},
        }
        (directory / "config.yml").write_text(yaml.safe_dump(settings))

    @property
    def asked(self) -> list[str]:
        """Return method and path of each request that the registry has granted."""
        return re.findall(r'"([A-Z]+ \S+) HTTP/\d\.\d" 2\d\d ', (self._directory / "log").read_text())

    def trusted(self, directory: Path) -> dict[str, str]:
        """Return the environment of a builder whose user trusts the certificate authority and has logged in."""
        place = directory / ".config" / "containers" / "certs.d" / self.name
        place.mkdir(parents=True)
        shutil.copy(self._authority.file, place / "ca.crt")
        environment = self.home(directory)
        login = ("--username", self.USER, "--password", self.PASSWORD)
        done = run("buildah", "login", *login, self.name, **environment)
        assert done.returncode == 0, done.stderr
        return environment

    def home(self, directory: Path) -> dict[str, str]:
        """Return the environment of a builder whose user has not logged in."""
        return {"HOME": str(directory), "REGISTRY_AUTH_FILE": str(directory / "auth.json")}

    def push(self, image: str, place: str, **environment: str) -> str:
        """Push an image to the registry, and return the image's name there, with its digest."""
        digest = self._directory / "digest"
        words = ("push", "--quiet", "--disable-compression", "--digestfile", digest, image, f"{self.name}/{place}")
        done = run("buildah", *words, **environment)
        assert done.returncode == 0, done.stderr
        return f"{self.name}/{place}@{digest.read_text()}"

    def __enter__(self) -> Self:
        with (self._directory / "log").open("wb") as log:
            command = ["docker-registry", "serve", self._directory / "config.yml"]
            # It takes settings from such variables, of which podman has one of the same name.
            ours = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ours)
        try:
            until(self._listens, 30, what="the registry listens")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(30 * PATIENCE)

    def _listens(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.name.rpartition(":")[2]))) == 0


class Running:
    """A container that runs like a pod's: with the image's user, a read-only root, three mounts and its own network.

    The object is a context manager that ends all that it started. It uses two namespaces of Linux instead of a
    container runtime, because the tests may run in a container themselves. Programs, arguments and variables are the
    image's own.
    """

    def __init__(self, image: str, storage: dict[str, str], directory: Path) -> None:
        self._storage, self._directory = storage, directory
        self.config = json.loads(run("buildah", "inspect", "--type", "image", image, **storage).stdout)["Docker"][
            "config"
        ]
        self._name = run("buildah", "from", "--pull-never", image, **storage).stdout.strip()
        self._root = Path(run("buildah", "mount", self._name, **storage).stdout.strip())
        self._processes: list[subprocess.Popen[bytes]] = []
        self.state = directory / "state"
        """The state directory."""

    def __enter__(self) -> Self:
        conf, root = self._directory / "conf", self._root
        shutil.copytree(ROOT / "config" / "demoinst", conf)
        self.state.mkdir()
        os.chown(self.state, *map(int, self.config["User"].split(":")))
        self.state.chmod(0o2770)
        (root / "etc" / "hostfactory").mkdir()
        program = f"""mount --make-rprivate /
            ip link set lo up
            mount --bind {root} {root}
            mount -t proc proc {root}/proc
            mount --rbind /dev {root}/dev
            mount --bind {conf} {root}/etc/hostfactory
            mount --bind {self.state} {root}/var/lib/hostfactory
            mount -t tmpfs -o mode=1777 tmp {root}/tmp
            mount -o remount,ro,bind {root}/etc/hostfactory
            mount -o remount,ro,bind {root}
            echo ready
            exec sleep infinity"""
        self._space = subprocess.Popen(["unshare", "-m", "-n", "sh", "-ec", program], stdout=subprocess.PIPE, text=True)
        assert self._space.stdout is not None
        assert self._space.stdout.readline() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60 * PATIENCE)
        self._space.kill()
        self._space.wait()
        assert self._space.stdout is not None
        self._space.stdout.close()
        run("buildah", "umount", self._name, **self._storage)
        if error is not None:
            print(*(f"{file.name}: {file.read_text()[-4000:]}" for file in self._directory.glob("*.log")), sep="\n")

    def _command(self, words: tuple[str, ...], environment: dict[str, str]) -> list[str]:
        """Return a command line that runs the words in the container, as the image's user, with the variables of image
        and pod."""
        given = {"HF_PROVIDER_NAME": "demoinst", **environment}
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in given.items())]
        space = ["nsenter", f"--target={self._space.pid}", "--mount", "--net"]
        user = ["chroot", f"--userspec={self.config['User']}", "--groups=", str(self._root)]
        return [*space, *user, "/usr/bin/env", "-i", *variables, *words]

    def do(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program that ends by itself, as ``kubectl exec`` does."""
        return run(*self._command(words, environment))

    def begin(self, name: str, *words: str, **environment: str) -> Path:
        """Start a program that runs until the end of the pod, and return its log file."""
        log = self._directory / f"{name}.log"
        with log.open("wb") as out:
            command = self._command(words, environment)
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        return log

    def health(self) -> subprocess.CompletedProcess[str]:
        """Run the image's health check, as a container's runtime does, and return the result."""
        kind, *words = self.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.do(*words)
