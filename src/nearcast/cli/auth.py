"""`nearcast auth …`: keys, users and certificates of a deployment."""

from __future__ import annotations

import asyncio
import getpass
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.auth.auth_folder import AuthFolder, User
from nearcast.auth.deployment_keys import add_site, add_tls, make_deployment_keys
from nearcast.auth.deployment_keys import add_tenant as add_tenant_keys
from nearcast.auth.push import push_accounts
from nearcast.auth.roles import ROLES, Grants
from nearcast.cli.console_login import log_in
from nearcast.cli.coordinator_call import broker_option
from nearcast.cli.options import ConfigOption
from nearcast.cli.output import JsonOption, print_done, print_fields, print_json, print_rows, waiting_notice
from nearcast.cli.rates import send_rates
from nearcast.config.deployment_file import read_sites
from nearcast.domain.times import span_seconds
from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import check_url
from nearcast.nats.identity.credentials import given_credentials, read_credentials, write_secret
from nearcast.nats.identity.tokens import AccessLimits, user_limits

app = typer.Typer()

FolderOption = Annotated[Path, typer.Option(envvar="NEARCAST_AUTH", help="The folder with all keys.")]
TenantOption = Annotated[str, typer.Option(help="The tenant; nobody of another one sees anything of it.")]
PushOption = Annotated[
    str,
    typer.Option(
        "--url",
        help="A broker to tell at once; it tells the others.",
        callback=lambda url: check_url(url) if url else url,  # before keys change
    ),
]
RateOption = Annotated[str, typer.Option(help="Messages that it may send at each site, such as 100/s.")]
BytesOption = Annotated[str, typer.Option("--bytes", help="What it may send at each site, such as 1MB/s.")]
Name = Annotated[str, typer.Argument(help="The user's name.")]
_AUTH = Path("auth")
_LAST_SECOND = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())  # a token may name a later one
_DEVICE_SUBSCRIPTIONS = 10_000  # each takes memory of the broker


@app.command()
def init(
    folder: FolderOption = _AUTH,
    config: ConfigOption = Path("nearcast.toml"),
    tenant: TenantOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Make the keys of a deployment, with users for its sites, coordinator, data cluster, console and `admin`.

    Example: nearcast auth init --config nearcast.toml
    """
    sites = read_sites(config)
    made = make_deployment_keys(folder, sites, tenant)
    _audit(made, "keys made", f"for {', '.join(site.name for site in sites)}")
    print_done(
        f"Keys of {len(sites)} site(s) are in {folder}. Name it in {config}: [auth] folder = {str(folder)!r}",
        {"folder": str(folder), "tenant": tenant, "sites": [site.name for site in sites]},
        as_json,
    )


@app.command()
def tls(
    folder: FolderOption = _AUTH,
    config: ConfigOption = Path("nearcast.toml"),
    days: Annotated[float, typer.Option(min=0.001, max=36500, help="How long certificates are valid.")] = 365,
    site: Annotated[str, typer.Option(help="This site only, with certificates of your own authority.")] = "",
    ca: Annotated[Path | None, typer.Option(help="Your authority's certificate.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="The site's certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="The site's private key.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make or renew the certificates of all sites, or take yours. Running sites take them within seconds.

    Example: nearcast auth tls --config nearcast.toml
    """
    from nearcast.auth.certificates import take_certificate

    opened = AuthFolder.open(folder)
    if site:
        if ca is None or certificate is None or key is None:
            raise InputError("--site needs --ca, --certificate and --key")
        take_certificate(folder / "tls", site, ca, certificate, key)
        opened.add_authority()
        made = [site]
    else:
        made = add_tls(opened, read_sites(config), days)
    _audit(opened, "certificates made", ", ".join(made))
    print_done(
        f"Certificates of {', '.join(made)} are in {folder / 'tls'}.",
        {"folder": str(folder / "tls"), "sites": made},
        as_json,
    )


@app.command()
def add(
    role: Annotated[str, typer.Argument(help=", ".join(ROLES))],
    name: Name,
    folder: FolderOption = _AUTH,
    publish: Annotated[list[str] | None, typer.Option(help="A topic or pattern; may be repeated.")] = None,
    subscribe: Annotated[list[str] | None, typer.Option(help="A topic or pattern; may be repeated.")] = None,
    channel: Annotated[list[str] | None, typer.Option(help="A channel, * for all; may be repeated.")] = None,
    feed: Annotated[list[str] | None, typer.Option(help="A dataset, * for all; may be repeated.")] = None,
    tenant: TenantOption = "main",
    site: Annotated[str, typer.Option(help="Of a store or worker: the site it belongs to.")] = "",
    expires: Annotated[str, typer.Option(help="How long it is valid, such as 12h or 30d.")] = "",
    mqtt: Annotated[
        bool, typer.Option("--mqtt", help="For a device that speaks MQTT: its token is its password.")
    ] = False,
    max_subscriptions: Annotated[
        int | None, typer.Option(min=-1, help="-1: no limit. A device has 10000 unless this says otherwise.")
    ] = None,
    max_payload: Annotated[int, typer.Option(min=-1, help="Bytes; -1: no limit.")] = -1,
    max_connections: Annotated[int, typer.Option(min=-1, help="At each site; -1: no limit.")] = -1,
    rate: RateOption = "",
    byte_rate_: BytesOption = "",
    out: Annotated[Path | None, typer.Option(help="Also write the credentials here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a user; its credentials are written into the folder.

    Example: nearcast auth add device car7 --publish gps.car7 --subscribe gps.car7
    """
    if out is not None and out.is_dir():
        raise InputError(f"--out {out} is a folder; a file is needed")
    if role in ("store", "worker") and not site:
        raise InputError(f"a {role} belongs to a site; name it by --site")
    opened = AuthFolder.open(folder)
    grants = Grants(tuple(publish or ()), tuple(subscribe or ()), tuple(channel or ()), tuple(feed or ()))
    if max_subscriptions is None:
        max_subscriptions = _DEVICE_SUBSCRIPTIONS if role == "device" else -1
    limits = AccessLimits(max_connections, max_subscriptions, max_payload, -1, -1, *send_rates(rate, byte_rate_))
    until = int(time.time()) + _seconds(expires) if expires else 0
    if role == "site":
        add_site(opened, name, tenant)
        file = opened.credentials_file(name, tenant)
    else:
        file = opened.add_user(role, name, tenant, grants, site=site, expires=until, mqtt=mqtt, limits=limits)
    _audit(opened, "user made", f"{role} {name} of {tenant}")
    if out is not None:
        try:
            write_secret(out, file.read_text())
        except OSError as error:
            raise NearcastError(f"{name} is made, but {out} cannot be written: {error.strerror}; copy {file}") from None
    said = str(out or file)
    fields = {"user": name, "tenant": tenant, "role": role, "credentials": said}
    if mqtt:
        password = read_credentials(file).token
        said, fields["mqtt_password"] = f"{said}\nMQTT: user name {name}, password:\n{password}", password
    print_done(said, fields, as_json)


@app.command("tenant")
def add_tenant(
    name: Annotated[str, typer.Argument(help="The tenant.")],
    folder: FolderOption = _AUTH,
    config: ConfigOption = Path("nearcast.toml"),
    max_connections: Annotated[int, typer.Option(min=-1, help="-1: no limit.")] = -1,
    max_subscriptions: Annotated[int, typer.Option(min=-1, help="-1: no limit.")] = -1,
    max_payload: Annotated[int, typer.Option(min=-1, help="Bytes; -1: no limit.")] = -1,
    max_stored_bytes: Annotated[int, typer.Option(min=-1, help="In each store; -1: no limit.")] = -1,
    max_streams: Annotated[int, typer.Option(min=-1, help="In each store; -1: no limit.")] = -1,
    rate: RateOption = "",
    byte_rate_: BytesOption = "",
    url: PushOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a tenant with users for all sites, or change the limits of one.

    Example: nearcast auth tenant acme --max-connections 1000
    """
    opened = AuthFolder.open(folder)
    new = name not in opened.tenants
    given = max_connections, max_subscriptions, max_payload, max_stored_bytes, max_streams
    limits = AccessLimits(*given, *send_rates(rate, byte_rate_))
    if new:
        add_tenant_keys(opened, name, read_sites(config), limits)
    else:
        opened.add_tenant(name, limits)
    _audit(opened, "tenant made" if new else "limits changed", name)
    said = f"Tenant {name} is made." if new else f"Tenant {name} has other limits."
    _done_and_pushed(said, {"tenant": name, "made": new}, opened, url, as_json)


@app.command("ls")
def list_users(folder: FolderOption = _AUTH, as_json: JsonOption = False) -> None:
    """List all users. Example: nearcast auth ls"""
    print_rows([_row(user) for user in AuthFolder.open(folder).users()], as_json, "There are no users.")


@app.command()
def show(name: Name, folder: FolderOption = _AUTH, tenant: TenantOption = "main", as_json: JsonOption = False) -> None:
    """Show a user, and what it may publish and subscribe to. Example: nearcast auth show car7"""
    for user in AuthFolder.open(folder).users():
        if (user.name, user.tenant) == (name, tenant):
            nats = user.claims.nats
            may = {"publish": nats["pub"].get("allow", []), "subscribe": nats["sub"].get("allow", [])}
            print_fields(_row(user) | {"key": user.claims.subject} | may, as_json)
            return
    raise InputError(f"there is no user {name!r} of tenant {tenant}; see: nearcast auth ls")


@app.command()
def revoke(
    name: Name,
    folder: FolderOption = _AUTH,
    tenant: TenantOption = "main",
    url: PushOption = "",
    as_json: JsonOption = False,
) -> None:
    """Void a user's credentials; with --url its connections are closed at once.

    Example: nearcast auth revoke car7 --url nats://127.0.0.1:4222
    """
    opened = AuthFolder.open(folder)
    opened.revoke(name, tenant)
    _audit(opened, "user revoked", f"{name} of {tenant}")
    _done_and_pushed(f"{name} is revoked.", {"user": name, "tenant": tenant}, opened, url, as_json)


@app.command()
def rotate(
    folder: FolderOption = _AUTH,
    tenant: TenantOption = "main",
    finish: Annotated[bool, typer.Option("--finish", help="Void all that was signed with earlier keys.")] = False,
    url: PushOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a new signing key and new credentials; the old ones stay good until `--finish`.

    Example: nearcast auth rotate --url nats://127.0.0.1:4222
    """
    opened = AuthFolder.open(folder)
    fields: dict[str, Any] = {"tenant": tenant, "finished": finish}
    if finish:
        opened.finish_rotation(tenant)
        said = "What was signed with earlier keys is void."
    else:
        fields["users"] = opened.rotate(tenant)
        said = f"{fields['users']} users have new credentials. Hand them out, then: nearcast auth rotate --finish"
    _audit(opened, "rotation finished" if finish else "keys rotated", tenant)
    _done_and_pushed(said, fields, opened, url, as_json)


@app.command()
def export(
    site: Annotated[str, typer.Argument(help="The site that runs on the other machine.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; copy it there.")],
    folder: FolderOption = _AUTH,
    tenant: TenantOption = "main",
    as_json: JsonOption = False,
) -> None:
    """Write what the machine of a site needs: no key that could sign anything.

    Example: nearcast auth export tokyo tokyo-auth
    """
    opened = AuthFolder.open(folder)
    files = [str(out / file.relative_to(opened.path)) for file in opened.export(site, out, tenant)]
    fields = {"site": site, "folder": str(out), "files": files}
    print_done(f"{len(files)} files for site {site} are in {out}.", fields, as_json)


@app.command()
def push(
    url: Annotated[str, broker_option("A broker.")], folder: FolderOption = _AUTH, as_json: JsonOption = False
) -> None:
    """Tell running brokers of changed tenants: revocations, keys, limits.

    Example: nearcast auth push --url nats://127.0.0.1:4222
    """
    _done_and_pushed("", {}, AuthFolder.open(folder), url, as_json)


@app.command()
def login(
    console: Annotated[str, typer.Argument(help="The console's address, such as https://127.0.0.1:8600.")],
    creds: Annotated[
        Path | None, typer.Option(help="Credentials of an operator or a reader; NEARCAST_CREDS by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Log in to a console and print a token for REST: send it as `Authorization: Bearer TOKEN`, twelve hours at most.

    Example: nearcast auth login https://127.0.0.1:8600 --creds auth/users/main/admin.creds
    """
    credentials = given_credentials(creds)
    if credentials is None:
        raise InputError("there are no credentials; give --creds FILE or set NEARCAST_CREDS")
    session = log_in(console, credentials)
    if as_json:
        print_fields(session, as_json)
    else:
        typer.echo(session["token"])


def _done_and_pushed(sentence: str, fields: dict[str, Any], folder: AuthFolder, url: str, as_json: bool) -> None:
    """Say what was done, also if the brokers cannot be told of it; tell them, if there is an address."""
    if sentence and not as_json:
        typer.echo(sentence)
    tenants: list[str] = []
    if url:
        with waiting_notice(f"Waiting for the brokers by {url}."):
            tenants = asyncio.run(push_accounts(folder, url))
    if as_json:
        print_json(fields | {"brokers_know_of": tenants})
    elif url:
        typer.echo(f"The brokers know of {', '.join(tenants)}.")


def _audit(folder: AuthFolder, action: str, what: str) -> None:
    folder.note(getpass.getuser(), action, what)


def _row(user: User) -> dict[str, Any]:
    expires = user.claims.expires
    return {
        "user": user.name,
        "tenant": user.tenant,
        "role": user.role,
        "state": user.state,
        "issued": _time(user.claims.issued),
        "expires": _time(expires) if expires else "never",
        "limits": _limits(user),
    }


def _limits(user: User) -> str:
    limits = user_limits(user.claims)
    units = {
        "messages_per_second": "messages/s",
        "bytes_per_second": "bytes/s",
        "connections": "connections",
        "subscriptions": "subscriptions",
        "payload": "bytes of payload",
    }
    return ", ".join(f"{value:.10g} {unit}" for name, unit in units.items() if (value := getattr(limits, name)) >= 0)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC).isoformat(timespec="seconds")


def _seconds(text: str) -> int:
    if not (seconds := span_seconds(text)):
        raise InputError(f"--expires is {text!r}; allowed: a span such as 90s, 15m, 12h, 30d (36500d at most)")
    return seconds
