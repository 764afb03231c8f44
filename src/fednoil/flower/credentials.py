"""Certificates and keys for a federation, in the forms that Flower reads.

A small private certificate authority signs the SuperLink's certificate; each node has an ECDSA key pair, with the
public half registered at the SuperLink. Private files are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fednoil.errors import UserError
from fednoil.files import make_private, write_bytes

CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
OURS = {CA, "ca.key", CERTIFICATE, KEY, "keys", "home", "log", "nodes", "federation.json"}
OURS |= {"superlink.db", "superlink.db-shm", "superlink.db-wal"}
_DAYS, _AUTHORITY = 365, 3650  # of a server's certificate, and of its authority
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*(?!\d+$){_LABEL}")  # the last label is not a number, unlike an address's


def make_certificates(folder: Path, hosts: Sequence[str], force: bool = False) -> list[Path]:
    """Make an authority (`ca.crt`, `ca.key`), for ten years, and a certificate for these hosts, for one."""
    paths = [folder / name for name in (CA, "ca.key", CERTIFICATE, KEY)]
    names = x509.SubjectAlternativeName([_host(name) for name in hosts])
    _free(paths, force)
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = _name("FedNoiL federation")
    ca = (
        _certificate(issuer, issuer, ca_key.public_key(), _AUTHORITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    server = _server(names, hosts[0], key, issuer, ca_key)
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write(paths[0], ca.public_bytes(pem), 0o644)
    _write(paths[1], ca_key.private_bytes(pem, pkcs8, plain), 0o600)
    _write(paths[2], server.public_bytes(pem), 0o644)
    _write(paths[3], key.private_bytes(pem, pkcs8, plain), 0o600)
    return paths


def renew_certificate(folder: Path) -> Path:
    """A new server certificate of the same authority, for the same names and key: the sites need nothing new."""
    try:
        found = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        ca_key, key = (
            serialization.load_pem_private_key((folder / name).read_bytes(), None) for name in ("ca.key", KEY)
        )
        ca = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; --renew needs what `certs` has made") from None
    except ValueError as error:
        raise UserError(f"{folder} has no certificate that can be renewed ({error})") from None
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    host = str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    server = _server(names, host, key, ca.subject, ca_key)
    write_bytes(folder / CERTIFICATE, server.public_bytes(serialization.Encoding.PEM))
    return folder / CERTIFICATE


def _server(
    names: x509.SubjectAlternativeName,
    host: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    ca_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    return (
        _certificate(_name(host[:64]), issuer, key.public_key(), _DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(names, critical=False)
        .sign(ca_key, hashes.SHA384())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def have_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Make certificates if there are none; refuse existing ones with which nodes couldn't come online."""
    missing = [name for name in (CA, CERTIFICATE, KEY) if not (folder / name).exists()]
    if len(missing) == 3:
        make_certificates(folder, hosts)
        return
    renew = f"make new ones: fednoil federation certs {shlex.quote(str(folder))} --force"
    if missing:
        raise UserError(f"{folder / missing[0]} is missing; {renew}")
    path = folder / CERTIFICATE
    try:
        until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except ValueError:
        raise UserError(f"{path} is not a certificate; {renew}") from None
    if until < datetime.now(UTC):
        raise UserError(f"{path} expired on {until:%Y-%m-%d}; {renew}")


def make_key(path: Path, force: bool = False) -> list[Path]:
    """A node's key pair at `path` and `path`.pub."""
    paths = [path, path.with_name(f"{path.name}.pub")]
    _free(paths, force)
    key, form = ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    _write(paths[0], private, 0o600)
    _write(paths[1], _public(key), 0o644)
    return paths


def have_key(path: Path) -> Path:
    """The public half of the key pair at `path`, which is created or completed if necessary."""
    public = path.with_name(f"{path.name}.pub")
    if not path.exists():
        public.unlink(missing_ok=True)
        make_key(path)
    elif not public.exists():
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), None)
        except ValueError:
            raise UserError(f"{path} is not a private key; remove it to get a new one") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{path} is not an ECDSA key, which Flower needs; remove it to get a new one")
        _write(public, _public(key), 0o644)
    return public


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, form) + b"\n"


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
    return builder.not_valid_after(now + timedelta(days=days))


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
    if len(name) > 253 or not _HOST.fullmatch(name):
        raise UserError(
            f"--host '{name}' is neither an address nor an ASCII host name; write for example fl.example.org or "
            "192.0.2.7, without a port"
        )
    return x509.DNSName(name)


def _free(paths: Sequence[Path], force: bool) -> None:
    """Refuse to replace a key that nodes or servers may be using."""
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise UserError(f"{there[0]} already exists; choose another folder, or --force to replace it")
    private_folder(paths[0].parent, [path.name for path in paths])
    for path in paths:  # an old half beside a new one would look like a pair
        path.unlink(missing_ok=True)


def private_folder(folder: Path, secret: Sequence[str]) -> None:
    """Make a folder that only its owner can read, and keep the `secret` files in it out of Git.

    Git ignores everything in a new or empty folder, and only these names in one that has other files.
    """
    make_private(folder)
    ignore = folder / ".gitignore"
    there = ignore.read_text().splitlines() if ignore.is_file() else []
    alone = not there and all(path.name in OURS for path in folder.iterdir())
    wanted = ["*"] if alone else [f"/{name}" for name in secret]
    more = [] if "*" in there else [line for line in wanted if line not in there]
    if more:
        ignore.write_text("".join(f"{line}\n" for line in [*there, *more]))


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
