"""The way to the clouds where a proxy and authorities of one's own stand in it.

Every client reads it from the environment, each from variables of its own: they are set here, once for the process and
the plugins that it runs.
"""

from __future__ import annotations

import os
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from provisioner.backends import BackendError
from provisioner.model import ErrorClass

BUNDLE = "REQUESTS_CA_BUNDLE"
"""Read by requests, and so by Google's REST clients and tokens."""

BUNDLES = (BUNDLE, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "SSL_CERT_FILE")
"""Of requests, of gRPC (Pub/Sub), and of plugins, as of everything that is built on OpenSSL or Go."""

PROXY_FILE = "HTTPS_PROXY_FILE"
"""Names a file with the proxy's address: a password stands in no manifest, unit or environment of others."""
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
DIRECT = ("metadata.google.internal", "metadata", "169.254.169.254", "localhost", "127.0.0.1")
"""What answers only the host that asks: through a proxy the metadata server would say who the proxy is, and this host,
with the embedded cloud on it, would be the proxy's own."""
DIRECT_BY_NAME = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "KUBERNETES_SERVICE_HOST")
"""Variables that name further hosts that are here: another metadata server, the API server of a pod's own cluster."""

TUNNEL_REFUSED = "Tunnel connection failed: 407"
"""How Python's HTTP client begins what it says of a proxy that does not know us; the words after it are the proxy's."""
ANOTHER_LOGIN = (
    "the proxy wants another login than ours (HTTP 407): correct name and password in HTTPS_PROXY, or in the file that "
    f"{PROXY_FILE} names, and start again"
)
NO_ADDRESS = (
    "expected an address such as http://proxy:3128, or http://name:password@proxy:3128, in which a special character "
    "is written as %40 is for @"
)
"""Said without the address, which may hold a password."""

MOST_WAIT = 300.0
"""Seconds for which a server's Retry-After is followed at most: API servers ask for one second."""

SOON = 30 * 86_400.0
"""Seconds before the end of an authority at which people are told."""


def prepare(ca_bundle: Path | None) -> None:
    """Let every client of this process take proxy and authorities. Raises BackendError for a bundle that is none, a
    proxy's file that cannot be read, and an address of a proxy that is none."""
    environment = os.environ
    if file := environment.get(PROXY_FILE):
        environment["HTTPS_PROXY"] = environment["https_proxy"] = _proxy_in(file)
    for name in PROXIES:
        if (proxy := environment.get(name)) and not environment.get(name.lower()):
            environment[name.lower()] = proxy  # gRPC reads no other
    if not _leads_to_a_proxy(environment.get("https_proxy", "")):
        raise _unusable(file or "", PROXY_FILE if file else "HTTPS_PROXY", NO_ADDRESS)
    if any(environment.get(name.lower()) for name in PROXIES):
        environment["NO_PROXY"] = environment["no_proxy"] = ",".join(_direct(environment))
    given = str(ca_bundle or environment.get(BUNDLE, ""))
    if given:
        _authorities(given, "ca_bundle" if ca_bundle else BUNDLE)
        environment.update(dict.fromkeys(BUNDLES, given))


def authorities() -> str | None:
    """The file of the authorities that ``prepare`` has let all clients take; None for the system's."""
    return os.environ.get(BUNDLE) or None


def proxy_login(proxy: str | None) -> dict[str, str]:
    """The header by which a proxy knows us, of name and password in its address: urllib3 takes them from no address."""
    address = urlsplit(proxy or "")
    if not address.username:
        return {}
    login = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {"proxy-authorization": f"Basic {b64encode(login.encode()).decode()}"}


def failed_call(error: BaseException, kind: ErrorClass, text: str) -> BackendError:
    """Return the failure of a call, of class ``kind``; DENIED if the proxy does not know us.

    Another call would get the same from the proxy, and may lock the account.
    """
    if TUNNEL_REFUSED in str(error):
        return BackendError(ErrorClass.DENIED, ANOTHER_LOGIN)
    return BackendError(kind, text)


def seconds_until(retry_after: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, given as such or as a date; None without one."""
    if not retry_after:
        return None
    if retry_after.isdecimal():
        return min(MOST_WAIT, float(retry_after))
    until = epoch_of(retry_after)
    return None if until is None else min(MOST_WAIT, max(0.0, until - time.time()))


def epoch_of(date: str) -> float | None:
    """Return the epoch seconds of a date as HTTP has it; None for another form."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def signature(files: Iterable[str | os.PathLike[str] | None]) -> tuple[tuple[int, ...], ...]:
    """A key that changes with any of the files; one that is not there has a key, too."""
    return tuple(_key(file) for file in files)


def _key(file: str | os.PathLike[str] | None) -> tuple[int, ...]:
    try:
        facts = os.stat(file or "")
    except OSError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def ending_authorities(ca_bundle: Path | None, wall: float) -> list[str]:
    """What to say of authorities of the bundle that have ended, or soon will. Raises BackendError, as ``prepare``.

    Only of a bundle that the configuration names: one of the system always holds some that have ended.
    """
    said = []
    for authority in _authorities(str(ca_bundle), "ca_bundle") if ca_bundle else ():
        ends = ssl.cert_time_to_seconds(str(authority["notAfter"]))
        if ends < wall + SOON:
            word = "ended" if ends < wall else "ends"
            day = time.strftime("%Y-%m-%d", time.gmtime(ends))
            said.append(
                f"ca_bundle {ca_bundle}: the authority {_name(authority)} {word} on {day}; put its successor in"
            )
    return said


def _proxy_in(file: str) -> str:
    """The proxy's address; empty for none. Raises BackendError."""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _unusable(file, PROXY_FILE, reason) from error


def _leads_to_a_proxy(address: str) -> bool:
    """Whether all clients read it alike, or it is empty: some take one without a scheme, others are lost with it."""
    try:
        parts = urlsplit(address)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    rest = parts.path.strip("/") or parts.query or parts.fragment
    return not address or bool(whole and not rest and address.split() == [address])


def _direct(environment: Mapping[str, str]) -> Iterator[str]:
    """The hosts that are reached without a proxy: as people have named them, and those that never are behind one."""
    named = (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(",")
    local = [environment[name] for name in DIRECT_BY_NAME if environment.get(name)]
    hosts = [*(name.strip() for name in named), *DIRECT, *local, *(host.rpartition(":")[0] for host in local)]
    yield from dict.fromkeys(filter(None, hosts))


def _authorities(file: str, setting: str) -> list[dict[str, Any]]:
    """The authorities in a bundle. Raises BackendError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:
        # OpenSSL's own words for a file without certificates help nobody.
        reason = "it holds no certificate (PEM)" if isinstance(error, ssl.SSLError) else error.strerror
        raise _unusable(file, setting, reason) from error
    authorities = context.get_ca_certs()
    if not authorities:
        raise _unusable(file, setting, "it holds no certificate authority (PEM)")
    if all(ssl.cert_time_to_seconds(str(one["notAfter"])) < time.time() for one in authorities):
        raise _unusable(file, setting, "all its authorities have ended")
    return authorities


def _unusable(file: str, setting: str, reason: str | None) -> BackendError:
    named = f"{setting} {file}".rstrip()
    return BackendError(ErrorClass.INVALID, f"{named} cannot be used: {reason}; correct it, or leave it out")


def _name(authority: Mapping[str, Any]) -> str:
    """An authority's common name, or all that it is called."""
    parts = {key: value for part in authority["subject"] for key, value in part}
    return str(parts.get("commonName") or ", ".join(parts.values()))
