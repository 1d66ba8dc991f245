"""The folder with all keys and tokens of a deployment: one operator, a system account, an account per tenant, users.

keys/<name>.seed              secret keys of operator and accounts; they stay where users are made
operator.jwt, accounts/*.jwt  what brokers must know
users/<tenant>/<user>.creds   what users must have; `.revoked` once they are out
gateway.password              by which brokers know each other
tls/                          certificates, see `certificates`
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from nearcast.auth.roles import NO_GRANTS, Grants, Role, check_role, denied_queues, permissions
from nearcast.domain.names import check_name
from nearcast.errors import InputError
from nearcast.nats.identity.credentials import credentials_file, read_credentials, write_secret
from nearcast.nats.identity.keys import KeyPair, new_key, read_key
from nearcast.nats.identity.tokens import (
    UNLIMITED,
    AccessLimits,
    Claims,
    account_limits,
    account_token,
    operator_token,
    read_token,
    tagged_role,
    user_limits,
    user_token,
)

__all__ = ["SITE_ROLES", "SYSTEM", "AuthFolder", "User", "site_user"]

SYSTEM = "system"
"""The account of the brokers themselves."""
_PUSHER = "push"
_OPERATOR, _SIGNING = "operator", "-signing"  # names of keys
SITE_ROLES: tuple[Role, ...] = ("site", "store", "worker")
# Brokers enforce these limits of a tenant for its agents and workers, too: reports, pages of history, topics.
_LEAST_OF_TENANT = {"payload": 512 << 10, "subscriptions": 10_000}


@dataclass(frozen=True)
class User:
    """A user as its token says."""

    name: str
    tenant: str
    role: str
    claims: Claims
    revoked: bool

    @property
    def state(self) -> str:
        """active, expired or revoked."""
        if self.revoked:
            return "revoked"
        expired = self.claims.expires and self.claims.expires <= time.time()
        return "expired" if expired else "active"


class AuthFolder:
    """Reads and changes the folder. What it writes only its owner may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, tenants: tuple[str, ...] = ("main",)) -> AuthFolder:
        """Make the keys and tokens of a new deployment; the folder must be empty or new."""
        if path.exists() and any(path.iterdir()):
            raise InputError(f"{path} is not empty; the keys of a deployment go into a new folder")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        folder = cls(path)
        operator = folder._make_key(_OPERATOR, "operator")
        signing = folder._make_key(f"{_OPERATOR}{_SIGNING}", "operator")
        system = folder._make_key(SYSTEM, "account")
        write_secret(folder.operator_file, operator_token(operator, "nearcast", [signing.public], system.public))
        write_secret(path / "gateway.password", secrets.token_urlsafe(24))
        write_secret(path / ".gitignore", "*\n")
        folder._add_account(SYSTEM)
        # By this user changed accounts are told to running brokers.
        folder._write_system_user(_PUSHER, ["$SYS.REQ.CLAIMS.UPDATE"], [])
        for tenant in tenants:
            folder.add_tenant(tenant)
        return folder

    @classmethod
    def open(cls, path: Path) -> AuthFolder:
        """The folder that was made by `create` or `export`."""
        folder = cls(path)
        if not folder.operator_file.is_file():
            raise InputError(f"{path} has no operator.jwt; make the keys with: nearcast auth init --folder {path}")
        return folder

    @property
    def operator_file(self) -> Path:
        """The operator's token."""
        return self.path / "operator.jwt"

    @property
    def gateway_password(self) -> str:
        """By which brokers know each other."""
        return (self.path / "gateway.password").read_text().strip()

    @property
    def ca_file(self) -> Path:
        """The authority that signs the servers' certificates, if TLS is used."""
        return self.path / "tls" / "ca.pem"

    @property
    def tenants(self) -> list[str]:
        """All tenants."""
        return sorted(file.stem for file in (self.path / "accounts").glob("*.jwt") if file.stem != SYSTEM)

    def account_file(self, account: str) -> Path:
        """The token of an account."""
        file = self.path / "accounts" / f"{account}.jwt"
        if not file.is_file():
            raise InputError(f"tenant is {account!r}; allowed: {', '.join(self.tenants)}")
        return file

    def account_claims(self, account: str) -> Claims:
        """What the token of an account says."""
        return read_token(self.account_file(account).read_text())

    def credentials_file(self, user: str, tenant: str) -> Path:
        """The credentials of a user."""
        file = self.path / "users" / tenant / f"{user}.creds"
        if not file.is_file():
            raise InputError(f"there is no user {user!r} of tenant {tenant} in {self.path}; see: nearcast auth ls")
        return file

    def site_credentials_file(self, site: str, role: Role, tenant: str) -> Path:
        """The credentials of a site's agent, store or workers."""
        file = self.path / "users" / tenant / f"{site_user(site, role)}.creds"
        if not file.is_file():
            of_tenant = "" if tenant == "main" else f" --tenant {tenant}"
            raise InputError(
                f"site {site!r} has no users of tenant {tenant} in {self.path}; "
                f"make them where the keys are: nearcast auth add site {site}{of_tenant}"
            )
        return file

    def monitor_file(self, site: str) -> Path:
        """The credentials by which a site watches its broker; folders of earlier versions have none."""
        return self.path / "users" / SYSTEM / f"{_monitor(site)}.creds"

    def add_tenant(self, tenant: str, limits: AccessLimits = UNLIMITED) -> None:
        """Make a tenant: nobody of another one sees anything of it. Or change the limits of one."""
        check_name(tenant, "tenant")
        if tenant in (SYSTEM, _OPERATOR) or tenant.endswith(_SIGNING):  # its keys would be those of somebody else
            raise InputError(
                f"tenant is {tenant!r}; allowed: not {SYSTEM}, not {_OPERATOR}, and no name that ends in {_SIGNING}"
            )
        for name, least in _LEAST_OF_TENANT.items():
            if 0 <= (value := getattr(limits, name)) < least:
                raise InputError(
                    f"tenant {tenant}: {name} is {value}; allowed: -1, or {least} and more, as its sites need that; "
                    "give its users less"
                )
        self._add_account(tenant, limits)

    def add_user(
        self,
        role: str,
        name: str,
        tenant: str = "main",
        grants: Grants = NO_GRANTS,
        *,
        site: str = "",
        expires: int = 0,
        mqtt: bool = False,
        limits: AccessLimits = UNLIMITED,
    ) -> Path:
        """Make a user, and return its credentials file."""
        known = check_role(role)
        if known in SITE_ROLES:
            site = check_name(site or name, "site")
        file = self.path / "users" / tenant / f"{check_name(name, 'user')}.creds"
        if file.exists():
            raise InputError(
                f"user {name!r} of tenant {tenant} exists already; revoke it first, or choose another name"
            )
        allowed = permissions(known, name, grants, site)
        if mqtt:
            if known != "device":
                raise InputError(f"role {role} cannot use MQTT; allowed: device")
            allowed.subscribe += ["$MQTT.sub.>", "$MQTT.deliver.>"]
        tags = [f"role:{known}", *([f"site:{site}"] if site else [])]
        key = new_key("user")
        token = user_token(
            self._key(f"{tenant}{_SIGNING}"),
            self.account_claims(tenant).subject,
            key.public,
            name,
            publish=allowed.publish,
            subscribe=allowed.subscribe,
            limits=limits,
            tags=tags,
            expires=expires,
            mqtt=mqtt,
            leaf_node=known == "store",
            queues_denied=allowed.queues_denied,
        )
        write_secret(file, credentials_file(token, key.seed, self._ca()))
        return file

    def users(self) -> list[User]:
        """All users that were ever made, but those of the brokers themselves."""
        found = []
        for file in sorted((self.path / "users").glob("*/*")):
            if file.parent.name == SYSTEM or file.suffix not in (".creds", ".revoked"):
                continue
            revoked = file.suffix == ".revoked"
            claims = read_token(file.read_text()) if revoked else read_credentials(file).claims
            role = tagged_role(claims.nats.get("tags", []))
            found.append(User(claims.name, file.parent.name, role, claims, revoked))
        return found

    def revoke(self, user: str, tenant: str = "main") -> None:
        """Void a user's token. Brokers close its connections when they are told (`push`)."""
        file = self.credentials_file(user, tenant)
        credentials = read_credentials(file)
        revoked = {credentials.claims.subject: int(time.time())}
        self._change_account(tenant, revocations=self.account_claims(tenant).nats.get("revocations", {}) | revoked)
        write_secret(file.with_suffix(".revoked"), credentials.token)
        file.unlink()

    def rotate(self, tenant: str = "main") -> int:
        """A new signing key for a tenant, beside the old one; its users get new tokens for their keys.

        Old tokens stay good until `finish_rotation`, so that files can be exchanged meanwhile. Returns how many users.
        """
        keys = self.account_claims(tenant).nats["signing_keys"]
        key = self._make_key(f"{tenant}{_SIGNING}", "account")
        self._change_account(tenant, signing_keys=[*keys, key.public])
        files = sorted((self.path / "users" / tenant).glob("*.creds"))
        for file in files:
            self._sign_again(file, key)
        return len(files)

    def finish_rotation(self, tenant: str = "main") -> None:
        """Tokens that were signed with earlier keys are void from now on."""
        self._change_account(tenant, signing_keys=[self._key(f"{tenant}{_SIGNING}").public])

    def export(self, site: str, target: Path, tenant: str = "main") -> list[Path]:
        """Copy what the machine of a site needs into another folder: no key that could sign anything."""
        self.site_credentials_file(site, "site", tenant)
        wanted = [self.operator_file, self.path / "gateway.password", self.path / ".gitignore"]
        wanted += sorted((self.path / "accounts").glob("*.jwt"))
        wanted += [file for file in (self.monitor_file(site),) if file.is_file()]
        for name in (self.path / "users").iterdir():
            if name.name != SYSTEM:
                wanted += [file for role in SITE_ROLES if (file := name / f"{site_user(site, role)}.creds").is_file()]
        tls = [self.ca_file, *(self.path / "tls" / f"{site}.{kind}" for kind in ("pem", "key"))]
        wanted += [file for file in tls if file.is_file()]
        for file in wanted:
            write_secret(target / file.relative_to(self.path), file.read_text())
        return wanted

    def add_authority(self) -> None:
        """Write the certificate authority into all credentials: brokers speak TLS from now on."""
        for file in (self.path / "users").glob("*/*.creds"):
            credentials = read_credentials(file)
            write_secret(file, credentials_file(credentials.token, credentials.seed, self._ca()))

    def note(self, who: str, action: str, what: str) -> None:
        """Append to `audit.jsonl` who did what with keys and users."""
        entry = {"time": time.time(), "who": who, "action": action, "what": what}
        with (self.path / "audit.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def notes(self) -> list[dict[str, Any]]:
        """What was noted, the oldest first."""
        file = self.path / "audit.jsonl"
        return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()] if file.is_file() else []

    def _add_account(self, account: str, limits: AccessLimits = UNLIMITED) -> None:
        if (self.path / "accounts" / f"{account}.jwt").is_file():
            self._change_account(account, limits=limits)
            return
        if not (self.path / "keys" / f"{account}.seed").is_file():
            self._make_key(account, "account")
        signing = self._make_key(f"{account}{_SIGNING}", "account")
        self._write_account(account, [signing.public], {}, limits)

    def _change_account(self, account: str, **changed: Any) -> None:
        """Sign its token again; what is not changed stays as it is."""
        claims = self.account_claims(account)
        keys, revocations = claims.nats["signing_keys"], claims.nats.get("revocations", {})
        held: dict[str, Any] = {"signing_keys": keys, "revocations": revocations, "limits": account_limits(claims)}
        self._write_account(account, **held | changed)

    def _write_account(
        self, account: str, signing_keys: list[str], revocations: dict[str, int], limits: AccessLimits
    ) -> None:
        token = account_token(
            self._key(f"{_OPERATOR}{_SIGNING}"),
            self._key(account).public,
            account,
            signing_keys,
            revocations,
            limits,
            stores=account != SYSTEM,
        )
        write_secret(self.path / "accounts" / f"{account}.jwt", token)

    def add_site_monitor(self, site: str) -> None:
        """The user by which a site hears of connections to its broker, and closes those that are over a limit."""
        if not self.monitor_file(check_name(site, "site")).is_file():
            events = [f"$SYS.ACCOUNT.*.{event}" for event in ("CONNECT", "DISCONNECT")]
            self._write_system_user(_monitor(site), ["$SYS.REQ.SERVER.*.KICK"], events)

    def _write_system_user(self, name: str, publish: list[str], subscribe: list[str]) -> None:
        key = new_key("user")
        token = user_token(
            self._key(f"{SYSTEM}{_SIGNING}"), self.account_claims(SYSTEM).subject, key.public, name,
            publish=publish, subscribe=[*subscribe, f"_INBOX.{name}.>"], limits=UNLIMITED, tags=["role:system"],
        )  # fmt: skip
        write_secret(self.path / "users" / SYSTEM / f"{name}.creds", credentials_file(token, key.seed, self._ca()))

    def _sign_again(self, file: Path, key: KeyPair) -> None:
        old = read_credentials(file)
        claims = old.claims
        tags = claims.nats.get("tags", [])
        token = user_token(
            key,
            claims.nats["issuer_account"],
            claims.subject,
            claims.name,
            publish=claims.nats["pub"].get("allow", []),
            subscribe=claims.nats["sub"].get("allow", []),
            limits=user_limits(claims),
            tags=[tag for tag in tags if tag.startswith(("role:", "site:"))],
            expires=claims.expires,
            mqtt=bool(claims.nats.get("bearer_token")),
            leaf_node=tagged_role(tags) == "store",
            queues_denied=denied_queues(tagged_role(tags)),
        )
        write_secret(file, credentials_file(token, old.seed, self._ca()))

    def _make_key(self, name: str, kind: Literal["operator", "account"]) -> KeyPair:
        key = new_key(kind)
        write_secret(self.path / "keys" / f"{name}.seed", key.seed)
        return key

    def _key(self, name: str) -> KeyPair:
        file = self.path / "keys" / f"{name}.seed"
        if not file.is_file():
            raise InputError(f"{self.path} has no key {name}; tokens are signed where `nearcast auth init` was run")
        return read_key(file.read_text())

    def _ca(self) -> str:
        return self.ca_file.read_text() if self.ca_file.is_file() else ""


def site_user(site: str, role: Role) -> str:
    """The name of the user that a part of a site has."""
    return site if role == "site" else f"{site}-{role}"


def _monitor(site: str) -> str:
    return f"{site}-monitor"
