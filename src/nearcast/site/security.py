"""What a site's servers and processes need to know who is who: tokens, credentials, certificates."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.auth.auth_folder import SYSTEM, AuthFolder
from nearcast.auth.certificates import check_certificate
from nearcast.errors import InputError
from nearcast.nats.identity.credentials import Credentials, read_credentials
from nearcast.nats.identity.tokens import account_limits, read_token
from nearcast.site.usage_limits import Tenant

if TYPE_CHECKING:
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec

__all__ = ["SiteSecurity", "TlsFiles", "is_loopback", "refuse_open_site", "site_security"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TlsFiles:
    """A site's certificate, its key, and the authority that signs those of all sites."""

    certificate: Path
    key: Path
    ca: Path

    def context(self) -> ssl.SSLContext:
        """By which a client of this machine knows the site's servers."""
        return ssl.create_default_context(cafile=str(self.ca))

    def block(self, *, mutual: bool = False) -> str:
        """For a listener of nats-server. mutual: the other side must show a certificate of the authority, too."""
        verify = f'verify: {str(mutual).lower()}, ca_file: "{self.ca}"'
        return f'tls {{ cert_file: "{self.certificate}", key_file: "{self.key}", {verify}, timeout: 10 }}'


@dataclass(frozen=True)
class SiteSecurity:
    """Of one site. tenant: the account of the agent and the workers."""

    folder: AuthFolder
    site: str
    tenant: str
    tls: TlsFiles | None

    def credentials(self, role: str) -> Credentials:
        """The credentials of the site's agent (`site`) or of its workers (`worker`)."""
        file = self.folder.site_credentials_file(self.site, "worker" if role == "worker" else "site", self.tenant)
        return read_credentials(file)

    def accounts(self, resolver: str, told: Path | None = None) -> str:
        """The part of a server's configuration that says whom to believe. resolver: where accounts are kept.

        told: a folder with tokens that the broker was told; a newer one is taken instead of the folder's own.
        """
        folder = self.folder
        preload = "\n".join(
            f"  {read_token(token).subject}: {token}"
            for name in (SYSTEM, *folder.tenants)
            for token in (_newest(folder.account_file(name), told),)
        )
        return (
            f"operator: {folder.operator_file.read_text()}\n"
            f"system_account: {folder.account_claims(SYSTEM).subject}\n"
            f"resolver: {resolver}\nresolver_preload {{\n{preload}\n}}"
        )

    def tenant_limits(self, told: Path) -> dict[str, Tenant]:
        """The tenants by account, with their limits as the broker was told last."""
        found = {}
        for name in self.folder.tenants:
            claims = read_token(_newest(self.folder.account_file(name), told))
            found[claims.subject] = Tenant(name, account_limits(claims))
        return found

    def store_links(self, url: str) -> str:
        """The leaf nodes of the site's store: one for each tenant, whose streams are its own."""
        links = []
        for tenant in self.folder.tenants:
            try:
                file = self.folder.site_credentials_file(self.site, "store", tenant)
            except InputError:  # nothing of this tenant is kept here
                continue
            account = self.folder.account_claims(tenant).subject
            tls = f', tls {{ ca_file: "{self.tls.ca}" }}' if self.tls is not None else ""
            links.append(f'    {{ url: "{url}", account: "{account}", credentials: "{file}"{tls} }}')
        return "\n".join(links)


def _newest(file: Path, told: Path | None) -> str:
    token = file.read_text()
    claims = read_token(token)
    other = told / f"{claims.subject}.jwt" if told is not None else None
    if other is not None and other.is_file():
        later = other.read_text().strip()
        if read_token(later).issued >= claims.issued:
            return later
    return token


def site_security(deployment: Deployment, site: str) -> SiteSecurity | None:
    """What the `[auth]` folder has for a site; nothing when the deployment has none."""
    if deployment.auth is None:
        return None
    folder = AuthFolder.open(deployment.auth.folder)
    tls = None
    if folder.ca_file.is_file():
        tls_folder = folder.ca_file.parent
        check_certificate(tls_folder, site)
        tls = TlsFiles(tls_folder / f"{site}.pem", tls_folder / f"{site}.key", folder.ca_file)
    tenants = (deployment.auth.tenant, *(tenant.name for tenant in deployment.tenants))
    found = [SiteSecurity(folder, site, tenant, tls) for tenant in tenants]
    for one in found:
        for role in ("site", "worker"):
            one.credentials(role).refuse_expired()
    return found[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_site(deployment: Deployment, site: SiteSpec, security: SiteSecurity | None) -> None:
    """A site that others can reach must know who they are; `insecure = true` is for networks where nobody else is."""
    secured = security is not None and security.tls is not None
    if secured or is_loopback(site.host):
        return
    what = "TLS" if security is not None else "credentials and TLS"
    if not deployment.insecure:
        raise InputError(
            f"site {site.name} listens on {site.host} without {what}: make them with `nearcast auth init` and "
            "`nearcast auth tls`, or write `insecure = true` if nobody else is in this network"
        )
    _log.warning("site %s: INSECURE: listens on %s without %s (insecure = true)", site.name, site.host, what)
