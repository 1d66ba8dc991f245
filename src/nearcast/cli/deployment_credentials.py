"""The credentials of commands that read `nearcast.toml`: what its `[auth]` folder has, unless others are given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nearcast.auth.auth_folder import AuthFolder
from nearcast.nats.identity.credentials import VARIABLE

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment

__all__ = ["use_credentials"]


def use_credentials(deployment: Deployment, user: str) -> None:
    """Connect as this user from now on; Spark's Python processes inherit it."""
    if deployment.auth is not None and VARIABLE not in os.environ:
        file = AuthFolder.open(deployment.auth.folder).credentials_file(user, deployment.auth.tenant)
        os.environ[VARIABLE] = str(file)
