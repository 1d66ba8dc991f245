"""Keys, tokens and users in their folder."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import nacl.signing
import pytest

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.certificates import check_certificate, make_authority, make_certificate
from nearcast.auth.deployment_keys import add_site, add_tls, make_deployment_keys
from nearcast.auth.roles import Grants
from nearcast.domain.deployment import AuthSpec, Deployment
from nearcast.domain.site import SiteSpec
from nearcast.errors import InputError
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.identity.tokens import AccessLimits, account_limits
from nearcast.site.security import SiteSecurity, is_loopback, refuse_open_site, site_security

SITES = (SiteSpec("tokyo"), SiteSpec("cloud", "cloud", port=4300))


@pytest.fixture
def folder(tmp_path: Path) -> AuthFolder:
    return make_deployment_keys(tmp_path / "auth", SITES)


def test_nobody_else_may_read_the_folder(folder: AuthFolder) -> None:
    add_tls(folder, SITES)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    files = [file for file in folder.path.rglob("*") if file.is_file()]
    assert len(files) > 20
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_token_is_signed_by_the_key_it_names(folder: AuthFolder) -> None:
    credentials = read_credentials(folder.credentials_file("tokyo", "main"))
    signed, _, signature = credentials.token.rpartition(".")
    issuer = credentials.claims.issuer
    key = base64.b32decode(issuer + "=" * (-len(issuer) % 8))[1:-2]
    nacl.signing.VerifyKey(key).verify(signed.encode(), base64.urlsafe_b64decode(signature + "=="))
    assert issuer in folder.account_claims("main").nats["signing_keys"]


def test_what_is_exported_cannot_sign(folder: AuthFolder, tmp_path: Path) -> None:
    add_tls(folder, SITES)
    folder.export("tokyo", tmp_path / "out")
    written = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert "tls/tokyo.key" in written
    assert "users/main/tokyo-store.creds" in written
    assert not [name for name in written if name.startswith("keys") or "ca.key" in name or "cloud" in name]
    with pytest.raises(InputError, match="tokens are signed where"):
        AuthFolder.open(tmp_path / "out").add_user("service", "x")


def test_the_export_of_a_site_without_users_says_how_to_make_them(folder: AuthFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"site 'new' has no users of tenant main in .*: nearcast auth add site new$"):
        folder.export("new", tmp_path / "out")
    with pytest.raises(InputError, match=r"make them where the keys are: nearcast auth add site new$"):
        SiteSecurity(folder, "new", "main", None).credentials("worker")
    folder.add_tenant("acme")
    add_site(folder, "new", "main")
    with pytest.raises(InputError, match=r"site 'new' has no users of tenant acme in .* add site new --tenant acme$"):
        folder.export("new", tmp_path / "out", "acme")
    folder.export("new", tmp_path / "out")
    assert (tmp_path / "out" / "users" / "main" / "new-worker.creds").is_file()


def test_a_rotation_keeps_users_and_their_rights(folder: AuthFolder) -> None:
    file = folder.add_user("device", "car7", grants=Grants(("gps.car7",), ("gps.car7",)), expires=4_000_000_000)
    before = read_credentials(file)
    assert folder.rotate() == len(list(folder.path.glob("users/main/*.creds")))
    after = read_credentials(file)
    assert after.claims.issuer != before.claims.issuer
    assert "deny" in before.claims.nats["sub"]
    same = ("pub", "sub", "subs", "payload", "tags", "issuer_account")
    assert [after.claims.nats[field] for field in same] == [before.claims.nats[field] for field in same]
    assert (after.seed, after.claims.subject, after.claims.expires) == (
        before.seed,
        before.claims.subject,
        4_000_000_000,
    )
    assert len(folder.account_claims("main").nats["signing_keys"]) == 2
    folder.finish_rotation()
    assert folder.account_claims("main").nats["signing_keys"] == [after.claims.issuer]


def test_a_revoked_user_is_listed_and_its_name_is_free(folder: AuthFolder) -> None:
    folder.add_user("device", "car7", grants=Grants(("gps.car7",)))
    folder.revoke("car7")
    assert [user.state for user in folder.users() if user.name == "car7"] == ["revoked"]
    with pytest.raises(InputError, match="there is no user 'car7'"):
        folder.credentials_file("car7", "main")


@pytest.mark.parametrize(
    ("role", "name", "grants", "problem"),
    [
        ("king", "x", Grants(), "the role is 'king'; allowed: device, service"),
        ("device", "a.b", Grants(), "user name is 'a.b'"),
        ("device", "x", Grants(("gps..a",)), "a level is empty"),
        ("worker", "x", Grants((">",)), "role worker takes no grants"),
        ("device", "tokyo", Grants(), "exists already"),
    ],
)
def test_wrong_users_are_refused(folder: AuthFolder, role: str, name: str, grants: Grants, problem: str) -> None:
    with pytest.raises(InputError, match=problem.replace("(", r"\(")):
        folder.add_user(role, name, grants=grants)


@pytest.mark.parametrize("name", ["operator", "system", "main-signing", "operator-signing", "../x", ""])
def test_no_tenant_takes_the_keys_of_another(folder: AuthFolder, name: str) -> None:
    keys = {file.name: file.read_text() for file in (folder.path / "keys").iterdir()}
    with pytest.raises(InputError, match=f"tenant (name )?is {name!r}; allowed: "):
        folder.add_tenant(name)
    assert {file.name: file.read_text() for file in (folder.path / "keys").iterdir()} == keys


@pytest.mark.parametrize("limits", [AccessLimits(payload=2000), AccessLimits(subscriptions=9_999)])
def test_no_tenant_is_given_less_than_its_sites_need(folder: AuthFolder, limits: AccessLimits) -> None:
    """Brokers would close the connections of its agents."""
    with pytest.raises(InputError, match=r"tenant rival: \w+ is \d+; allowed: -1, or \d+ and more"):
        folder.add_tenant("rival", limits)
    folder.add_tenant("rival", AccessLimits(payload=512 << 10, subscriptions=10_000))
    assert account_limits(folder.account_claims("rival")).payload == 512 << 10


def test_a_folder_with_keys_is_not_overwritten(folder: AuthFolder) -> None:
    with pytest.raises(InputError, match="is not empty"):
        AuthFolder.create(folder.path)


def test_certificates_of_another_authority_are_refused(tmp_path: Path) -> None:
    make_authority(tmp_path / "a")
    make_authority(tmp_path / "b")
    make_certificate(tmp_path / "a", "tokyo", ["10.0.0.1"])
    (tmp_path / "a/ca.pem").write_text((tmp_path / "b/ca.pem").read_text())
    with pytest.raises(InputError, match="is not signed by"):
        check_certificate(tmp_path / "a", "tokyo")


def test_a_site_beyond_loopback_needs_credentials_and_tls(folder: AuthFolder, caplog: pytest.LogCaptureFixture) -> None:
    site = SiteSpec("tokyo", host="10.0.0.1")
    with pytest.raises(
        InputError, match=r"site tokyo listens on 10.0.0.1 without credentials and TLS: .*insecure = true"
    ):
        refuse_open_site(Deployment((site,)), site, None)
    secured = Deployment((site,), auth=AuthSpec(folder.path))
    with pytest.raises(InputError, match="without TLS"):
        refuse_open_site(secured, site, site_security(secured, "tokyo"))
    refuse_open_site(Deployment((site,), insecure=True), site, None)
    assert "INSECURE" in caplog.text
    add_tls(folder, SITES)
    refuse_open_site(secured, site, site_security(secured, "tokyo"))
    refuse_open_site(Deployment((SiteSpec("a"),)), SiteSpec("a"), None)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "nats.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip
