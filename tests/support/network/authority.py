"""A certificate authority for tests, and its certificates."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Authority that signs certificates. ``days``: time from now until it expires; negative if it has expired."""

    def __init__(self, directory: Path, name: str = "Bank Root", *, days: int = 365) -> None:
        self._directory, self._key, self._name = directory, ec.generate_private_key(ec.SECP256R1()), _named(name)
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self._ends = datetime.now(UTC) + timedelta(days=days)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = self._builder(self._name, self._key.public_key()).add_extension(basic, critical=True)
        signed = certificate.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.file = directory / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._ends - timedelta(days=900))
            .not_valid_after(self._ends)
        )

    def signed(self, host: str) -> tuple[bytes, bytes]:
        """Return the key and the certificate (PEM) of a host. ``host``: a name or an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        names = x509.SubjectAlternativeName([name])
        built = self._builder(_named(host), key.public_key()).add_extension(names, critical=False)
        certificate = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        kind = serialization.PrivateFormat.PKCS8
        return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()), certificate

    def context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context of a server of that name."""
        key, certificate = self.signed(host)
        file = self._directory / f"{host}.pem"
        file.write_bytes(key + certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context
