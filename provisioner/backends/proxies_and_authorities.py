"""Proxies and private certificate authorities on the way to the clouds.

Each client reads the proxy and the authorities from its own environment variables. This module sets all these variables
once. The variables apply to the process and to the plugins that it runs.
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
"""Environment variable that the library requests reads. Google's REST clients and token calls use this library."""

BUNDLES = (BUNDLE, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "SSL_CERT_FILE")
"""Environment variables that name the file of certificate authorities: for the library requests, for gRPC (Pub/Sub),
and for all programs built on OpenSSL or Go, such as plugins."""

PROXY_FILE = "HTTPS_PROXY_FILE"
"""Environment variable that names a file with the proxy's address. So the proxy's password need not be in a manifest,
unit or environment."""
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
DIRECT = ("metadata.google.internal", "metadata", "169.254.169.254", "localhost", "127.0.0.1")
"""Hosts that are never called through a proxy. Through a proxy, the metadata server would describe the proxy's host
instead of ours, and ``localhost`` would be the proxy's host and not the embedded cloud's."""
DIRECT_BY_NAME = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "KUBERNETES_SERVICE_HOST")
"""Environment variables that name further local hosts: another metadata server, or the API server of a pod's own
cluster."""

TUNNEL_REFUSED = "Tunnel connection failed: 407"
"""Beginning of the error of Python's HTTP client if a proxy wants another login. The rest of the error is the proxy's
text."""
ANOTHER_LOGIN = (
    "the proxy wants another login than ours (HTTP 407): correct name and password in HTTPS_PROXY, or in the file that "
    f"{PROXY_FILE} names, and start again"
)
NO_ADDRESS = (
    "expected an address such as http://proxy:3128, or http://name:password@proxy:3128, in which a special character "
    "is written as %40 is for @"
)
"""Hint to the operator, without the configured address, because this address may contain a password."""

LONGEST_WAIT_SECONDS = 300.0
"""Longest Retry-After that is followed, in seconds. API servers ask for one second."""

WARNING_SECONDS = 30 * 86_400.0
"""Seconds before the expiry of a certificate authority during which ``check`` warns of it."""


def prepare(ca_bundle: Path | None) -> None:
    """Set the proxy and the certificate authorities for every client of this process.

    Raise BackendError if the proxy's address is invalid, if the file that contains this address cannot be used, or if
    the file of authorities (``ca_bundle``) cannot be used.
    """
    environment = os.environ
    if file := environment.get(PROXY_FILE):
        environment["HTTPS_PROXY"] = environment["https_proxy"] = _read_proxy(file)
    for name in PROXIES:
        if (proxy := environment.get(name)) and not environment.get(name.lower()):
            environment[name.lower()] = proxy  # gRPC reads only the lower-case name
    if not _is_proxy_address(environment.get("https_proxy", "")):
        raise _unusable_error(file or "", PROXY_FILE if file else "HTTPS_PROXY", NO_ADDRESS)
    if any(environment.get(name.lower()) for name in PROXIES):
        environment["NO_PROXY"] = environment["no_proxy"] = ",".join(_direct_hosts(environment))
    given = str(ca_bundle or environment.get(BUNDLE, ""))
    if given:
        _read_authorities(given, "ca_bundle" if ca_bundle else BUNDLE)
        environment.update(dict.fromkeys(BUNDLES, given))


def get_ca_bundle() -> str | None:
    """Return the path of the file of certificate authorities that ``prepare`` has set; None if the system's authorities
    apply."""
    return os.environ.get(BUNDLE) or None


def proxy_login(proxy: str | None) -> dict[str, str]:
    """Return the header with user name and password from the proxy's address. urllib3 does not read them from the
    address."""
    address = urlsplit(proxy or "")
    if not address.username:
        return {}
    login = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {"proxy-authorization": f"Basic {b64encode(login.encode()).decode()}"}


def failed_call(error: BaseException, kind: ErrorClass, text: str) -> BackendError:
    """Return the failure of a call. Its class is DENIED if the proxy refuses our login, and else ``kind``.

    A DENIED call is not repeated. The proxy would refuse the login again, and might lock the account.
    """
    if TUNNEL_REFUSED in str(error):
        return BackendError(ErrorClass.DENIED, ANOTHER_LOGIN)
    return BackendError(kind, text)


def seconds_until(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which contains seconds or a date; None if there is no valid
    header."""
    if not retry_after:
        return None
    if retry_after.isdecimal():
        return min(LONGEST_WAIT_SECONDS, float(retry_after))
    until = epoch_of(retry_after)
    return None if until is None else min(LONGEST_WAIT_SECONDS, max(0.0, until - time.time()))


def epoch_of(date: str) -> float | None:
    """Return the epoch seconds of a date in HTTP's format; None for another format."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def signature(files: Iterable[str | os.PathLike[str] | None]) -> tuple[tuple[int, ...], ...]:
    """Return a key of the files. The key changes if a file or its rights change, or if a file appears or disappears."""
    return tuple(_key(file) for file in files)


def _key(file: str | os.PathLike[str] | None) -> tuple[int, ...]:
    try:
        status = os.stat(file or "")
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def ending_authorities(ca_bundle: Path | None, wall: float) -> list[str]:
    """Return warnings about certificate authorities in the bundle that have expired or will soon expire. Raise
    BackendError if the bundle cannot be used. Only a configured bundle is checked, because the system's bundle always
    contains expired authorities."""
    messages = []
    for authority in _read_authorities(str(ca_bundle), "ca_bundle") if ca_bundle else ():
        ends = ssl.cert_time_to_seconds(str(authority["notAfter"]))
        if ends < wall + WARNING_SECONDS:
            word = "ended" if ends < wall else "ends"
            day = time.strftime("%Y-%m-%d", time.gmtime(ends))
            parts = {key: value for part in authority["subject"] for key, value in part}
            name = parts.get("commonName") or ", ".join(parts.values())
            messages.append(f"ca_bundle {ca_bundle}: the authority {name} {word} on {day}; add its successor")
    return messages


def _read_proxy(file: str) -> str:
    """Return the address of the proxy; empty if there is none. Raise BackendError if the file is unreadable."""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _unusable_error(file, PROXY_FILE, reason) from error


def _is_proxy_address(address: str) -> bool:
    """Return True if the address is empty, or if all clients understand it alike. Some clients need a scheme, others
    reject a scheme."""
    try:
        parts = urlsplit(address)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    rest = parts.path.strip("/") or parts.query or parts.fragment
    return not address or bool(whole and not rest and address.split() == [address])


def _direct_hosts(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the hosts that are reached without a proxy: the configured hosts, and hosts that are always local."""
    named = (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(",")
    local = [environment[name] for name in DIRECT_BY_NAME if environment.get(name)]
    hosts = [*(name.strip() for name in named), *DIRECT, *local, *(host.rpartition(":")[0] for host in local)]
    yield from dict.fromkeys(filter(None, hosts))


def _read_authorities(file: str, setting: str) -> list[dict[str, Any]]:
    """Return the certificate authorities in a bundle. Raise BackendError if the file contains none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:
        # OpenSSL's message about a file without certificates does not help.
        reason = "it holds no certificate (PEM)" if isinstance(error, ssl.SSLError) else error.strerror
        raise _unusable_error(file, setting, reason) from error
    authorities = context.get_ca_certs()
    if not authorities:
        raise _unusable_error(file, setting, "it holds no certificate authority (PEM)")
    if all(ssl.cert_time_to_seconds(str(one["notAfter"])) < time.time() for one in authorities):
        raise _unusable_error(file, setting, "all its authorities have ended")
    return authorities


def _unusable_error(file: str, setting: str, reason: str | None) -> BackendError:
    named = f"{setting} {file}".rstrip()
    return BackendError(ErrorClass.INVALID, f"{named} cannot be used: {reason}; correct it, or leave it out")
