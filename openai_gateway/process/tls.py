"""TLS key and certificate, checked before anything listens."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class TlsError(ValueError):
    """Key or certificate are unusable; the text says why."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a server."""

    key: Path
    certificate: Path


def tls_files(environment: Mapping[str, str] = os.environ) -> TlsFiles:
    """Return the files named by ``SSL_KEYFILE`` and ``SSL_CERTFILE``.

    Raises `TlsError` if one is not named or cannot be read, they do not belong together, or the certificate is not
    valid today.
    """
    paths = {}
    for name in ("SSL_KEYFILE", "SSL_CERTFILE"):
        value = environment.get(name, "")
        if not value:
            raise TlsError(f"--ssl needs the environment variable {name}")
        if not Path(value).is_file():
            raise TlsError(f"{name} must name a file, got {value}")
        paths[name] = Path(value)
    files = TlsFiles(paths["SSL_KEYFILE"], paths["SSL_CERTFILE"])
    _check(files)
    return files


def _check(files: TlsFiles) -> None:
    """Shake hands with ourselves, as a client that trusts exactly this certificate."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is the root of trust
    try:
        server_side.load_cert_chain(files.certificate, files.key)
        client_side.load_verify_locations(files.certificate)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{files.certificate} and {files.key} are no certificate and its key: {error}") from None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"{files.certificate} is not valid: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise TlsError(f"{files.certificate} cannot be used: {error}") from None
