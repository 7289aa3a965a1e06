"""Pairing: one small file that both nodes hold, and the identities of a session that are made from it.

The file is the key and the certificate of a private authority that expires. Each side makes itself a key and a
certificate with it, for as long as its process lives; who cannot show one of the same file is not talked to.
Must not know: what is said.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from wattdock.errors import Cause, ConfigError, StoreError, os_errors_as
from wattdock.opening import open_regular, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

Role = Literal["head", "agent"]
FILE_MODE, OTHERS = 0o600, stat.S_IRWXG | stat.S_IRWXO
MAX_PAIRING_BYTES = 16_384
PEM = serialization.Encoding.PEM
STDIN = Path("-")
# How far the nodes' times of day may differ.
SKEW = timedelta(minutes=5)
PURPOSES = {"head": ExtendedKeyUsageOID.CLIENT_AUTH, "agent": ExtendedKeyUsageOID.SERVER_AUTH}
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.enable_http_proxy", 0),
    # A timeline of hours is some hundred megabytes.
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
]


@dataclass(frozen=True)
class Pairing:
    """The authority of one pairing file.

    Attributes:
        expires: When nobody accepts it any longer.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, hours: float) -> Self:
        """Return a new pairing, which is valid for some hours."""
        expires = datetime.now(UTC) + timedelta(hours=hours)
        return cls(*_signed(f"wattdock {secrets.token_hex(8)}", expires, (x509.BasicConstraints(True, 0),)))

    @classmethod
    def make(cls, path: Path, hours: float) -> Self:
        """Write a new pairing file, which is valid for some hours.

        Raises:
            StoreError: There is a file already, or it cannot be written.
        """
        pairing = cls.new(hours)
        with os_errors_as(StoreError, f"cannot write {path}", "name a new file in a folder of your own"):
            descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pairing.pem)
        return pairing

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a pairing file; "-" is standard input.

        Raises:
            ConfigError: It cannot be read, others can read it, it is none, or it has expired.
        """
        content = sys.stdin.buffer.read(MAX_PAIRING_BYTES) if path == STDIN else _content(path)
        try:
            key = serialization.load_pem_private_key(content, None)
            certificate = x509.load_pem_x509_certificate(content)
            if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
                raise ValueError("its key and its certificate do not belong together")
        except ValueError as error:
            raise ConfigError(f"{path} is no pairing file", "`wattdock pair FILE` makes one") from error
        pairing = cls(key, certificate)
        if datetime.now(UTC) >= pairing.expires:
            expired = f"{path} has expired, at {pairing.expires.isoformat(timespec='seconds')}"
            raise ConfigError(expired, "make a new one with `wattdock pair`, and copy it to every node")
        return pairing

    @property
    def pem(self) -> bytes:
        """What stands in its file: the secret."""
        return _pem(self.key) + self._root

    @property
    def expires(self) -> datetime:
        """When it ends."""
        return self.certificate.not_valid_after_utc

    def server(self) -> grpc.ServerCredentials:
        """Return an agent's credentials, which take heads of the same pairing only."""
        return grpc.ssl_server_credentials([self._identity("agent")], self._root, require_client_auth=True)

    def channel(self, address: str) -> grpc.Channel:
        """Return a head's channel to an agent of the same pairing; connects when it is used."""
        key, certificate = self._identity("head")
        named = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", "agent.wattdock")]
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self._root, key, certificate), options=named)

    @property
    def _root(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def _identity(self, role: Role) -> tuple[bytes, bytes]:
        """Return a new key and its certificate for one side of a session."""
        name = f"{role}.wattdock"
        alternative = x509.SubjectAlternativeName([x509.DNSName(name)])
        parts = (x509.BasicConstraints(False, None), alternative, x509.ExtendedKeyUsage([PURPOSES[role]]))
        key, certificate = _signed(name, self.expires, parts, self)
        return _pem(key), certificate.public_bytes(PEM)


def _content(path: Path) -> bytes:
    """Return the content of a pairing file, which nobody else can read."""
    with os_errors_as(ConfigError, str(path), "`wattdock pair FILE` makes a pairing file"):
        descriptor = open_regular(path, owned=True)
        with os.fdopen(descriptor, "rb") as file:
            if mode := os.fstat(descriptor).st_mode & OTHERS:
                raise ConfigError(
                    f"{path}: other users can read or write it (mode {mode:03o} for them)",
                    "others may hold this secret: make a new one with `wattdock pair`, and keep its mode 600",
                    cause=Cause.OTHERS_COULD_WRITE,
                )
            return read_bounded(file, path, MAX_PAIRING_BYTES)


def _signed(
    name: str, expires: datetime, extensions: Iterable[x509.ExtensionType], by: Pairing | None = None
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return a new key and its certificate, valid from now on, signed by a pairing or by itself."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string(f"CN={name}")
    signer, issuer = (by.key, by.certificate.subject) if by else (key, subject)
    begins, serial = datetime.now(UTC) - SKEW, x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), serial, begins, expires)
    for extension in extensions:
        # Whoever does not understand what the others allow must refuse the certificate; a name allows nothing.
        builder = builder.add_extension(extension, critical=not isinstance(extension, x509.SubjectAlternativeName))
    return key, builder.sign(signer, hashes.SHA256())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
