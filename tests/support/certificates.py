"""Certificates for tests, made by the openssl command."""

import subprocess
from pathlib import Path

_CONFIG = """
[ca]
default_ca = mine
[mine]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = DNS:localhost,IP:127.0.0.1
"""


def make_certificate(folder: Path, *, until: str = "20491231000000Z") -> dict[str, str]:
    """Make a self-signed certificate for this machine; return the environment that names its files."""
    folder.mkdir(parents=True)
    (folder / "index.txt").touch()
    (folder / "ca.conf").write_text(_CONFIG.format(folder=folder))
    key, request, certificate = folder / "key.pem", folder / "request.pem", folder / "certificate.pem"
    _openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=localhost")
    dates = ("-startdate", "20200101000000Z", "-enddate", until)
    signing = ("-config", folder / "ca.conf", "-in", request, "-keyfile", key, "-out", certificate)
    _openssl("ca", "-selfsign", "-batch", "-notext", *signing, *dates)
    return {"SSL_KEYFILE": str(key), "SSL_CERTFILE": str(certificate)}


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
