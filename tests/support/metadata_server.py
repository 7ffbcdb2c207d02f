"""Stand-in for Compute Engine's metadata server, including ``wait_for_change``, and for Secret Manager."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.support.network.beside import Beside


class MetadataServer(Beside, ThreadingHTTPServer):
    """Server of the values in ``values``, by path below ``/computeMetadata/v1/``. A client's request can wait until
    ``change`` changes the value.

    ``then``: a value's new content after its first read. ``secrets``: secrets by name. A client gets them with
    ``TOKEN``, the token of the instance's account.
    """

    daemon_threads = True
    TOKEN = "ya29.c.b0Aa"

    def __init__(self, values: dict[str, str], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answer)
        token = {"access_token": self.TOKEN, "expires_in": 3599, "token_type": "Bearer"}
        self.values = {"instance/service-accounts/default/token": json.dumps(token)} | values
        self.secrets: dict[str, str] = {}
        self.then: dict[str, str] = {}
        self.etags = True
        """True if responses have an ETag. Without an ETag, a request that waits for a change gets a response at
        once."""
        self.asked: list[str] = []
        self.away: dict[str, int] = {}
        """For each value or secret, the number of further requests that get the status 503."""
        self.waiting = threading.Event()
        """Set while a client waits for a change."""
        self.changed = threading.Condition()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def change(self, path: str, value: str) -> None:
        """Change a value, and send it to the clients that wait."""
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()


def account(email: str, token: str) -> dict[str, str]:
    """Return the values from which Google's library gets the identity of a VM. The root is among them, because the
    library requests it first."""
    scopes = [f"https://www.googleapis.com/auth/{name}" for name in ("cloud-platform", "userinfo.email")]
    given = {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
    return {
        "/": "computeMetadata/",
        "instance/service-accounts/default/": json.dumps({"email": email, "scopes": scopes}),
        "instance/service-accounts/default/token": json.dumps(given),
        "project/project-id": email.partition("@")[2].partition(".")[0],
        "universe/universe-domain": "googleapis.com",
    }


def _etag(value: str) -> str:
    """Return the ETag of a value. A client waits until the value has another ETag."""
    return hashlib.sha256(value.encode()).hexdigest()[:16]


class _Answer(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith("/v1/"):
            self._tell_secret(url.path.removeprefix("/v1/"))
            return
        path, asked = url.path.removeprefix("/computeMetadata/v1/"), parse_qs(url.query)
        if self.headers.get("Metadata-Flavor") != "Google":
            self.send_error(403)
            return
        self.server.asked.append(path)
        if self._away(path):
            return
        if path not in self.server.values:
            self.send_error(404)
            return
        if "wait_for_change" in asked and self.server.etags:
            before = asked["last_etag"][0] if "last_etag" in asked else _etag(self.server.values[path])
            if before == _etag(self.server.values[path]):
                self.server.waiting.set()
            with self.server.changed:
                self.server.changed.wait_for(
                    lambda: _etag(self.server.values[path]) != before, float(asked["timeout_sec"][0])
                )
        value = self.server.values[path]
        if path in self.server.then:
            self.server.values[path] = self.server.then.pop(path)
        self._tell(value.encode())

    def _away(self, name: str) -> bool:
        if not self.server.away.get(name):
            return False
        self.server.away[name] -= 1
        self.send_error(503)
        return True

    def _tell_secret(self, path: str) -> None:
        name, _, version = path.partition("/versions/")
        if self._away(name):
            return
        if self.headers.get("Authorization") != f"Bearer {self.server.TOKEN}":
            self.send_error(401)
        elif version != "latest:access" or name not in self.server.secrets:
            self.send_error(404)
        else:
            payload = {"data": base64.b64encode(self.server.secrets[name].encode()).decode(), "dataCrc32c": "1"}
            answer = {"name": f"{name}/versions/3", "payload": payload}
            self._tell(json.dumps(answer, indent=2).encode())

    def _tell(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        if self.server.etags:
            self.send_header("ETag", _etag(body.decode()))
        self.send_header("Content-Type", "application/json" if body.startswith(b"{") else "application/text")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
