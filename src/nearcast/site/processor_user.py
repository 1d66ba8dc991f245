"""The user whose rights processors have, when the site runs as root and `processor_limits.user` names one."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["processor_user", "require_access"]


def processor_user(name: str) -> pwd.struct_passwd | None:
    """The user of that name; nothing for the site's own. InputError when processors cannot run as this user."""
    if not name:
        return None
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"processor_limits.user is {name!r}; this machine has no such user") from None
    if os.geteuid() not in (0, user.pw_uid):
        raise InputError(f"processor_limits.user is {name!r}; only a site that runs as root may have another user")
    return user if user.pw_uid != os.geteuid() else None


def require_access(user: pwd.struct_passwd | None, paths: Iterable[Path]) -> None:
    """InputError when a user may not enter a folder on the way to a file or folder that its processes need."""
    if user is None or user.pw_uid == 0:
        return
    for path in paths:
        found = path.resolve()
        for folder in found.parents if found.is_file() else (found, *found.parents):
            if folder.is_dir() and not _may_enter(user, folder.stat()):
                raise InputError(
                    f"processor_limits.user is {user.pw_name!r}, who may not enter {folder} and so cannot use {path}"
                )


def _may_enter(user: pwd.struct_passwd, folder: os.stat_result) -> bool:
    if folder.st_uid == user.pw_uid:
        return bool(folder.st_mode & stat.S_IXUSR)
    if folder.st_gid == user.pw_gid:
        return bool(folder.st_mode & stat.S_IXGRP)
    return bool(folder.st_mode & stat.S_IXOTH)
