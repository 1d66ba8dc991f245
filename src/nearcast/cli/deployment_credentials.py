"""The credentials of commands that read `nearcast.toml`: what its `[auth]` folder has, unless others are given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearcast.auth.auth_folder import AuthFolder
from nearcast.errors import InputError
from nearcast.nats.identity.credentials import VARIABLE, read_credentials

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment

__all__ = ["use_credentials"]


def use_credentials(deployment: Deployment, user: str) -> Deployment:
    """Connect as this user from now on; Spark's Python processes inherit it. What its tenant has of the deployment.

    Credentials that were given (NEARCAST_CREDS) are used instead, and say which tenant it is.
    """
    if deployment.auth is None:
        return deployment
    given = os.environ.get(VARIABLE)
    if not given:
        file = AuthFolder.open(deployment.auth.folder).credentials_file(user, deployment.auth.tenant)
        os.environ[VARIABLE] = str(file)
        return deployment
    if not deployment.tenants:
        return deployment
    folder, account = AuthFolder.open(deployment.auth.folder), read_credentials(given).claims.nats.get("issuer_account")
    parts = {one.auth.tenant: one for one in deployment.by_tenant() if one.auth is not None}
    for tenant, part in parts.items():
        if folder.account_claims(tenant).subject == account:
            return part
    raise InputError(f"{VARIABLE} is {given}; allowed: credentials of a tenant of this file: {', '.join(parts)}")
