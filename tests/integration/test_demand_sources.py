"""Sources of demand that run a program or call a server: real programs, a web server, and a real Prometheus."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provisioner.demand.simple_sources import Command, Prometheus, Url
from provisioner.demand.slurm import Slurm
from provisioner.demand.sources import Fleet, Running, Shape, SourceError, SourceSettings
from provisioner.testing.waiting import until
from tests.support.clients.prometheus import PROMETHEUS, prometheus
from tests.support.ports import free_ports

SHAPE = Shape(4, 16_000, 0)
FLEET = Fleet(1_800_000_000.0, {"Small": SHAPE, "Large": SHAPE}, {})


def wanted(source: SourceSettings) -> Mapping[str, int]:
    return source.read(FLEET).wanted


def failure(source: SourceSettings) -> str:
    with pytest.raises(SourceError) as raised:
        source.read(FLEET)
    return str(raised.value)


# --- programs ---------------------------------------------------------------------------------------------------------


def program(code: str, seconds: float = 30.0) -> SourceSettings:
    return Command(argv=(sys.executable, "-c", code), template="Small", timeout_seconds=seconds)


def test_a_program_prints_a_number_or_an_object() -> None:
    assert wanted(program("print(3)")) == {"Small": 3}
    assert wanted(program("print('{\"Large\": 2}')")) == {"Large": 2}


def test_a_program_that_fails_is_a_failed_read() -> None:
    assert "ended with code 1: no queue" in failure(program("import sys; print(3); sys.exit('no queue')"))
    assert "did not end within 0.2 s" in failure(program("import time; time.sleep(60)", 0.2))
    assert "printed more than 1024 KiB" in failure(program("print('1' * 2_000_000)"))
    assert "expected a number or a JSON object" in failure(program("pass"))
    assert "No such file" in failure(Command(argv=("/no/such/program",), template="Small"))


def test_an_operators_umlaut_in_a_reason_does_not_hide_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm keeps and prints the bytes of a reason, whatever the encoding of the operator's terminal was."""
    for name, output in (
        ("squeue", ""),
        ("scontrol", r"NodeName=m State=IDLE CfgTRES=cpu=4 AllocTRES= Reason=gel\344hmt\n"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{output}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    source, fleet = Slurm(), FLEET._replace(running={"m": Running("Small", 0.0)})
    source.read(fleet)
    assert source.read(fleet._replace(now=fleet.now + 30)).idle == {"m": 30.0}


# --- web pages --------------------------------------------------------------------------------------------------------


class Pages(ThreadingHTTPServer):
    """A web server with a page for each path."""

    def __init__(self, port: int = 0) -> None:
        self.pages: dict[str, tuple[int, str]] = {}
        self.logins: list[str | None] = []
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        self.server.logins.append(self.headers.get("Authorization"))
        status, text = self.server.pages.get(self.path, (404, "no such page"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(port: int = 0) -> Iterator[Pages]:
    with Pages(port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_page_holds_a_number_or_an_object_and_gets_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    with serving() as server:
        server.pages = {"/wanted?grid=1&grid=2&raw": (200, "3"), "/": (200, '{"Large": 2}')}
        assert wanted(Url(url=f"{server.url}/wanted?grid=1&grid=2&raw", template="Small")) == {"Small": 3}
        assert wanted(Url(url=server.url, token_file=token)) == {"Large": 2}
        assert server.logins == [None, "Bearer secret"]


def test_a_page_that_is_not_there_is_a_failed_read(tmp_path: Path) -> None:
    with serving() as server:
        server.pages = {"/moved": (302, "3"), "/none": (204, ""), "/text": (200, "three")}
        for path, message in {"/": "HTTP 404 no such page", "/moved": "HTTP 302", "/none": "HTTP 204"}.items():
            assert message in failure(Url(url=server.url + path, template="Small"))
        assert "got 'three'" in failure(Url(url=f"{server.url}/text", template="Small"))
        missing = Url(url=server.url, template="Small", token_file=tmp_path / "missing")
        assert "missing" in failure(missing)
        url = server.url
    assert "refused" in failure(Url(url=url, template="Small"))


# --- Prometheus -------------------------------------------------------------------------------------------------------


@PROMETHEUS
def test_a_query_wants_machines_and_a_lost_target_is_no_zero(tmp_path: Path) -> None:
    """Use a real Prometheus. If it cannot scrape a target, a query still succeeds, but without the target's series. The
    source must take this as a failure, and not as zero machines."""
    (port,) = free_ports(1)
    with serving(port) as target, prometheus(tmp_path, [f"127.0.0.1:{port}"]) as address:
        target.pages["/metrics"] = (200, 'jobs{template="Small"} 2.5\njobs{template="Large"} 4\n')

        def ask(query: str) -> SourceSettings:
            return Prometheus(url=address, query=query, template="Small")

        def is_wanted(query: str, expected: Mapping[str, int]) -> bool:
            try:
                return wanted(ask(query)) == expected
            except SourceError:
                return False

        until(lambda: is_wanted("sum by (template) (jobs)", {"Small": 3, "Large": 4}), 60, what="the series")
        assert wanted(ask("sum(jobs)")) == {"Small": 7}
        assert wanted(ask("scalar(sum(jobs))")) == {"Small": 7}
        assert wanted(ask("vector(0)")) == {"Small": 0}
        assert "got nan" in failure(ask("vector(0) / 0"))
        assert "got nan" in failure(ask("scalar(missing)"))
        assert "no series" in failure(ask("sum(missing)"))
        zero = 'label_replace(vector(0), "template", "{}", "", "")'
        query = f"sum by (template) (jobs) or {zero.format('Small')} or {zero.format('Mixed')}"
        assert ask(query).read(FLEET).wanted == {"Small": 3, "Large": 4}
        assert "HTTP 400" in failure(ask("sum("))
        assert "scalar or an instant vector" in failure(ask("jobs[1m]"))
        assert "scalar or an instant vector" in failure(ask('"3"'))
        assert "sum by (template)" in failure(ask("sum by (q) (label_replace(jobs, 'q', '$1', 'template', '(.*)'))"))
        target.pages["/metrics"] = (500, "")
        until(lambda: not is_wanted("sum(jobs)", {"Small": 7}), 60, what="the end of the series")
        assert "no series" in failure(ask("sum(jobs)"))
        assert wanted(ask("sum(jobs) or vector(0)")) == {"Small": 0}
    assert "refused" in failure(ask("sum(jobs)"))
