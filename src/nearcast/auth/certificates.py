"""A certificate authority of the deployment's own, and a certificate for each site, in the folder `tls`.

A site's certificate serves its listeners and, towards other sites, as its identity (mutual TLS).
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nearcast.errors import InputError
from nearcast.nats.identity.credentials import write_secret

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["check_certificate", "make_authority", "make_certificate", "take_certificate"]

_BACKDATED = datetime.timedelta(minutes=5)  # clocks of other machines may be behind
_AUTHORITY_DAYS = 3650


def make_authority(folder: Path) -> None:
    """Make `ca.pem` and `ca.key`, unless there are some."""
    if (folder / "ca.pem").exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("nearcast authority")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write(folder / "ca.key", _private(key))
    _write(folder / "ca.pem", builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def make_certificate(folder: Path, site: str, hosts: Iterable[str], days: float = 365) -> None:
    """Make (or renew) `<site>.pem` and `<site>.key`, signed by the authority; valid for these hosts and loopback."""
    if not (folder / "ca.key").is_file():
        raise InputError(f"{folder} has no ca.key; certificates are signed where the authority was made")
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_alternative(host) for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1", "::1"))]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(site), authority.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    _write(folder / f"{site}.key", _private(key))
    _write(folder / f"{site}.pem", builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def take_certificate(folder: Path, site: str, ca: Path, certificate: Path, key: Path) -> None:
    """Use certificates of the user's own authority."""
    for target, source in ((f"{site}.key", key), (f"{site}.pem", certificate), ("ca.pem", ca)):
        try:
            _write(folder / target, source.read_bytes())
        except OSError as error:
            raise InputError(f"{source} cannot be read: {error.strerror}") from None
    check_certificate(folder, site)


def check_certificate(folder: Path, site: str) -> None:
    """Raise InputError when a site's certificate is missing, expired, or not signed by the authority beside it."""
    file = folder / f"{site}.pem"
    try:
        found = x509.load_pem_x509_certificate(file.read_bytes())
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except OSError as error:
        raise InputError(
            f"{error.filename} cannot be read: {error.strerror}; make it with: nearcast auth tls"
        ) from None
    except ValueError as error:
        raise InputError(f"{file} is not a certificate: {error}") from None
    now = datetime.datetime.now(datetime.UTC)
    if now > found.not_valid_after_utc:
        when = found.not_valid_after_utc.isoformat(" ", "seconds")
        raise InputError(f"the certificate of site {site} ({file}) expired on {when}; renew it with: nearcast auth tls")
    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise InputError(f"the certificate of site {site} ({file}) is not signed by {folder / 'ca.pem'}") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(path: Path, data: bytes) -> None:
    write_secret(path, data.decode())
