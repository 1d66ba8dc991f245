"""All keys that the parts of a deployment need, made at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.auth.auth_folder import SITE_ROLES, AuthFolder, site_user
from nearcast.auth.certificates import make_authority, make_certificate
from nearcast.nats.identity.tokens import UNLIMITED, AccessLimits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nearcast.domain.site import SiteSpec

__all__ = ["add_site", "add_tenant", "add_tls", "make_deployment_keys"]

_OF_TENANT = {"coordinator": "coordinator", "cluster": "cluster", "operator": "admin", "console": "console"}


def make_deployment_keys(path: Path, sites: Iterable[SiteSpec], tenant: str = "main") -> AuthFolder:
    """A new folder with all users of one tenant."""
    folder = AuthFolder.create(path, ())
    add_tenant(folder, tenant, sites)
    return folder


def add_tenant(folder: AuthFolder, tenant: str, sites: Iterable[SiteSpec], limits: AccessLimits = UNLIMITED) -> None:
    """A tenant of these sites, with users for each site, its store and workers, coordinators, data cluster, console and
    `admin`."""
    folder.add_tenant(tenant, limits)
    for site in sites:
        add_site(folder, site.name, tenant)
    for role, name in _OF_TENANT.items():
        folder.add_user(role, name, tenant)


def add_site(folder: AuthFolder, site: str, tenant: str) -> None:
    """The users of a site's agent, store and workers, and the one by which it watches its broker."""
    folder.add_site_monitor(site)
    for role in SITE_ROLES:
        folder.add_user(role, site_user(site, role), tenant, site=site)


def add_tls(folder: AuthFolder, sites: Iterable[SiteSpec], days: float = 365) -> list[str]:
    """An authority, if there is none, and new certificates for these sites; credentials name the authority."""
    tls, made = folder.ca_file.parent, []
    make_authority(tls)
    for site in sites:
        make_certificate(tls, site.name, [site.host], days)
        made.append(site.name)
    folder.add_authority()
    return made
