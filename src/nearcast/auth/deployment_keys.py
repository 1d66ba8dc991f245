"""All keys that the parts of a deployment need, made at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.auth.auth_folder import AuthFolder, site_user
from nearcast.auth.certificates import make_authority, make_certificate
from nearcast.nats.identity.tokens import UNLIMITED, AccessLimits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nearcast.domain.site import SiteSpec

__all__ = ["add_site", "add_tenant", "add_tls", "make_deployment_keys"]


def make_deployment_keys(path: Path, sites: Iterable[SiteSpec], tenant: str = "main") -> AuthFolder:
    """A new folder with users for each site, its store and workers, coordinators, data cluster, console and `admin`."""
    folder = AuthFolder.create(path, (tenant,))
    for site in sites:
        add_site(folder, site.name, tenant)
    _add_tenant_users(folder, tenant)
    return folder


def add_site(folder: AuthFolder, site: str, tenant: str) -> None:
    """The users of a site's agent, store and workers, and the one by which it watches its broker."""
    folder.add_site_monitor(site)
    folder.add_user("site", site_user(site, "site"), tenant, site=site)
    folder.add_user("store", site_user(site, "store"), tenant, site=site)
    folder.add_user("worker", site_user(site, "worker"), tenant, site=site)


def add_tenant(folder: AuthFolder, tenant: str, sites: Iterable[SiteSpec], limits: AccessLimits = UNLIMITED) -> None:
    """A further tenant of these sites, with all users that it needs."""
    folder.add_tenant(tenant, limits)
    for site in sites:
        add_site(folder, site.name, tenant)
    _add_tenant_users(folder, tenant)


def _add_tenant_users(folder: AuthFolder, tenant: str) -> None:
    """Of what is there once for each tenant."""
    folder.add_user("coordinator", "coordinator", tenant)
    folder.add_user("cluster", "cluster", tenant)
    folder.add_user("operator", "admin", tenant)
    folder.add_user("console", "console", tenant)


def add_tls(folder: AuthFolder, sites: Iterable[SiteSpec], days: float = 365) -> list[str]:
    """An authority, if there is none, and new certificates for these sites; credentials name the authority."""
    tls, made = folder.ca_file.parent, []
    make_authority(tls)
    for site in sites:
        make_certificate(tls, site.name, [site.host], days)
        made.append(site.name)
    folder.add_authority()
    return made
