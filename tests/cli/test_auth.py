"""`nearcast auth` and `nearcast context` as they are typed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nearcast.auth.auth_folder import AuthFolder
from nearcast.cli import auth, context, init
from nearcast.cli.context import apply_context
from nearcast.cli.deployment_credentials import use_credentials
from nearcast.domain.deployment import AuthSpec, Deployment, TenantSpec
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats.identity.tokens import account_limits

CONFIG = '[[site]]\nname = "tokyo"\nhost = "10.0.0.1"\n[auth]\nfolder = "auth"\n'
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NEARCAST_URL", raising=False)
    monkeypatch.delenv("NEARCAST_CREDS", raising=False)
    (tmp_path / "nearcast.toml").write_text(CONFIG)

    def call(*words: str) -> str:
        app = {"auth": auth.app, "context": context.app}[words[0]]
        result = CliRunner().invoke(app, list(words[1:]))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


def test_users_that_expire_in_ten_thousand_years_are_refused_and_listed_if_they_are_there(run: Run) -> None:
    """One made `auth ls` and `auth show` end in a ValueError for good."""
    run("auth", "init")
    with pytest.raises(InputError, match=r"--expires is '99999999999d'; allowed: .*36500d at most"):
        run("auth", "add", "reader", "eve", "--expires", "99999999999d")
    AuthFolder.open(Path("auth")).add_user("reader", "eve", expires=10**15)
    assert json.loads(run("auth", "show", "eve", "--json"))["expires"] == "9999-12-31T23:59:59+00:00"


def test_what_cannot_be_written_or_be_valid_so_long_is_said_in_a_sentence(run: Run, tmp_path: Path) -> None:
    """Each ended in a traceback, and the user was made all the same, with a hidden file beside the folder."""
    run("auth", "init")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match=r"there is a folder; a file is needed"):
        run("auth", "add", "device", "car7", "--publish", "gps.car7", "--out", "there")
    assert "car7" not in run("auth", "ls")
    (tmp_path / "file").write_text("")
    with pytest.raises(NearcastError, match=r"car7 is made, but file/x cannot be written: .*; copy .*car7\.creds"):
        run("auth", "add", "device", "car7", "--publish", "gps.car7", "--out", "file/x")
    assert "equal to 36500" in run("auth", "tls", "--days", "99999999")
    with pytest.raises(InputError, match=r"file/project cannot be made: Not a directory"):
        init.command(Path("file/project"), 4222)


def test_users_are_made_listed_shown_and_revoked(run: Run, tmp_path: Path) -> None:
    assert "Keys of 1 site(s) are in auth" in run("auth", "init")
    assert "Certificates of tokyo" in run("auth", "tls")
    made = run("auth", "add", "device", "car7", "--publish", "gps.car7", "--expires", "30d", "--out", "car7.creds")
    assert made.strip() == "car7.creds"
    assert "BEGIN CERTIFICATE" in (tmp_path / "car7.creds").read_text()
    shown = json.loads(run("auth", "show", "car7", "--json"))
    assert "pub.gps.car7" in shown["publish"]
    assert "car7 is revoked" in run("auth", "revoke", "car7")
    users = {row["user"]: row for row in json.loads(run("auth", "ls", "--json"))}
    assert users["car7"]["state"] == "revoked"
    assert {users[name]["role"] for name in ("tokyo", "tokyo-store", "tokyo-worker", "admin")} == {
        "site", "store", "worker", "operator",
    }  # fmt: skip
    assert "users have new credentials" in run("auth", "rotate")
    assert "files for site tokyo" in run("auth", "export", "tokyo", "out")
    assert not (tmp_path / "out/keys").exists()


def test_a_script_gets_json_of_all_that_was_made(run: Run, tmp_path: Path) -> None:
    def told(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run("auth", *words, "--json"))
        return found

    assert told("init") == {"folder": "auth", "tenant": "main", "sites": ["tokyo"]}
    assert told("tls") == {"folder": "auth/tls", "sites": ["tokyo"]}
    made = told("add", "device", "car7", "--publish", "gps.car7", "--mqtt")
    assert made.pop("mqtt_password").startswith("eyJ")
    assert made == {"user": "car7", "tenant": "main", "role": "device", "credentials": "auth/users/main/car7.creds"}
    assert told("tenant", "rival") == {"tenant": "rival", "made": True, "brokers_know_of": []}
    assert told("tenant", "rival", "--rate", "5/s")["made"] is False
    assert told("rotate")["users"] > 1
    assert told("rotate", "--finish") == {"tenant": "main", "finished": True, "brokers_know_of": []}
    assert told("revoke", "car7") == {"user": "car7", "tenant": "main", "brokers_know_of": []}
    exported = told("export", "tokyo", "tokyo-auth")
    assert (exported["site"], exported["folder"]) == ("tokyo", "tokyo-auth")
    assert "tokyo-auth/operator.jwt" in exported["files"]


def test_limits_are_given_with_units_shown_and_kept(run: Run) -> None:
    run("auth", "init")
    run("auth", "add", "device", "car7", "--publish", "gps.car7", "--rate", "6k/min", "--bytes", "1MB/s",
        "--max-connections", "2")  # fmt: skip
    expected = "100 messages/s, 1000000 bytes/s, 2 connections, 10000 subscriptions"
    assert json.loads(run("auth", "show", "car7", "--json"))["limits"] == expected
    run("auth", "rotate")
    assert json.loads(run("auth", "show", "car7", "--json"))["limits"] == expected
    run("auth", "tenant", "rival", "--rate", "1000/s", "--max-connections", "9")
    folder = AuthFolder.open(Path("auth"))
    folder.rotate("rival")
    held = account_limits(folder.account_claims("rival"))
    assert (held.messages_per_second, held.bytes_per_second, held.connections) == (1000, -1, 9)
    for words, complaint in (
        (("--rate", "100"), r"--rate is '100'; allowed: a rate such as 100/s"),
        (("--rate", "1MB/s"), r"--rate is '1MB/s'"),
        (("--rate", "0/s"), r"--rate is '0/s', and nothing could ever be sent"),
        (("--expires", "0s"), r"--expires is '0s'; allowed: a span"),
        (("--bytes", "1Mb/s"), r"--bytes is '1Mb/s'; allowed: a rate such as 500kB/s"),
    ):
        with pytest.raises(InputError, match=complaint):
            run("auth", "add", "device", "car8", *words)
    with pytest.raises(InputError, match="a worker belongs to a site; name it by --site"):
        run("auth", "add", "worker", "tokyo-2")


def test_credentials_say_which_tenant_a_command_is_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("auth", "init")
    run("auth", "tenant", "rival")
    run("auth", "tenant", "other")
    site, auth_folder = SiteSpec("tokyo"), AuthSpec(Path("auth"))
    deployment = Deployment(
        (site,), (TopicSpec("a"),), auth=auth_folder, tenants=(TenantSpec("rival", (TopicSpec("b"),)),)
    )
    monkeypatch.setenv("NEARCAST_CREDS", "")  # none; and what is set below is undone
    assert use_credentials(deployment, "cluster") is deployment
    assert os.environ["NEARCAST_CREDS"] == "auth/users/main/cluster.creds"
    monkeypatch.setenv("NEARCAST_CREDS", "auth/users/rival/cluster.creds")
    assert [topic.name for topic in use_credentials(deployment, "cluster").topics] == ["b"]
    monkeypatch.setenv("NEARCAST_CREDS", "auth/users/other/cluster.creds")
    with pytest.raises(InputError, match="allowed: credentials of a tenant of this file: main, rival"):
        use_credentials(deployment, "cluster")


def test_the_selected_context_stands_for_url_and_credentials(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("auth", "init")
    creds = "auth/users/main/admin.creds"
    run("context", "add", "city", "--url", "nats://10.0.0.1:4222", "--creds", creds)
    run("context", "add", "lab", "--url", "nats://10.0.0.9:4222")
    assert [row["selected"] for row in json.loads(run("context", "ls", "--json"))] == [True, False]
    environment: dict[str, str] = {}
    monkeypatch.setattr("nearcast.cli.context.os.environ", environment | {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    apply_context()
    from nearcast.cli.context import os as seen

    assert seen.environ["NEARCAST_URL"] == "nats://10.0.0.1:4222"
    assert seen.environ["NEARCAST_CREDS"] == str(tmp_path / creds)
