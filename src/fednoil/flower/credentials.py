"""Certificates and keys for a federation, in the forms that Flower reads.

A small certificate authority of one's own signs the SuperLink's certificate; each node has an ECDSA key pair whose
public half is registered at the SuperLink. Private files are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fednoil.errors import UserError

CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
OURS = {CA, "ca.key", CERTIFICATE, KEY, "keys", "app", "home", "log", "nodes", "superlink.db", "federation.json"}
_DAYS = 365


def make_certificates(folder: Path, hosts: Sequence[str], force: bool = False) -> list[Path]:
    """A new authority (`ca.crt`, `ca.key`) and a server's certificate for these names and addresses, for a year."""
    paths = [folder / name for name in (CA, "ca.key", CERTIFICATE, KEY)]
    _free(paths, force)
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer, subject = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("FedNoiL federation", hosts[0][:64])
    )
    ca = (
        _certificate(issuer, issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    server = (
        _certificate(subject, issuer, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in hosts]), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write(paths[0], ca.public_bytes(pem), 0o644)
    _write(paths[1], ca_key.private_bytes(pem, pkcs8, plain), 0o600)
    _write(paths[2], server.public_bytes(pem), 0o644)
    _write(paths[3], key.private_bytes(pem, pkcs8, plain), 0o600)
    return paths


def make_key(path: Path, force: bool = False) -> list[Path]:
    """A node's key pair at `path` and `path`.pub."""
    paths = [path, path.with_name(f"{path.name}.pub")]
    _free(paths, force)
    key, form = ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(paths[0], private, 0o600)
    _write(paths[1], public + b"\n", 0o644)
    return paths


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
    return builder.not_valid_after(now + timedelta(days=_DAYS))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise UserError(f"'{name}' is neither an address nor a host's name in ASCII") from None


def _free(paths: Sequence[Path], force: bool) -> None:
    """Refuse to replace a key that nodes or servers may be using."""
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise UserError(f"{there[0]} exists already; choose another folder, or --force to replace it")
    private_folder(paths[0].parent, [path.name for path in paths])


def private_folder(folder: Path, secret: Sequence[str]) -> None:
    """Make a folder for its owner alone, and keep what is `secret` in it out of Git.

    In a folder that holds nothing else Git ignores everything, in another one these names.
    """
    for missing in [path for path in (folder, *folder.parents) if not path.exists()][::-1]:
        missing.mkdir(mode=0o700, exist_ok=True)
    ignore = folder / ".gitignore"
    there = ignore.read_text().splitlines() if ignore.is_file() else []
    alone = not there and all(path.name in OURS for path in folder.iterdir())
    wanted = ["*"] if alone else [f"/{name}" for name in secret]
    more = [] if "*" in there else [line for line in wanted if line not in there]
    if more:
        ignore.write_text("".join(f"{line}\n" for line in [*there, *more]))


def _write(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
