"""nearcast.toml: what is wrong is named by key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast import InputError
from nearcast.config.deployment_file import read_configuration

GOOD = """
processors = ["traffic"]

[[site]]
name = "tokyo"
position = [35.68, 139.76]
port = 4300
mqtt_port = 1884
[site.store]
directory = "tokyo"
sync_always = true
[site.limits]
max_payload = 65536

[[site]]
name = "cloud"
kind = "cloud"
port = 4310

[[topic]]
name = "gps.*"
managed_by = ["tokyo", "cloud"]
replicas = ["tokyo"]
quorum = 1
"""


def write(folder: Path, text: str) -> Path:
    (folder / "tokyo").mkdir(exist_ok=True)
    path = folder / "nearcast.toml"
    path.write_text(text)
    return path


def test_a_good_file_becomes_a_deployment(tmp_path: Path) -> None:
    deployment = read_configuration(write(tmp_path, GOOD))
    tokyo = deployment.site("tokyo")
    assert tokyo.store is not None
    assert tokyo.store.directory == tmp_path / "tokyo"
    assert tokyo.store.sync_always
    assert tokyo.limits.max_payload == 65536
    assert [site.name for site in deployment.peers("tokyo")] == ["cloud"]
    assert deployment.topic("gps.car").quorum == 1
    assert deployment.topic("other").managed_by == ()
    assert deployment.modules == ("traffic",)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            ("port = 4300", "prot = 4300"),
            "site[0].prot is 4300, an unknown key; allowed: name, kind, position, host, port",
        ),
        (
            ("sync_always", "sync"),
            "site[0].store.sync is True, an unknown key; allowed: directory, max_bytes, sync_always",
        ),
        (("port = 4300", 'port = "x"'), "site[0].port is 'x'; expected `int`, got `str`"),
        (("port = 4300", "port = 70000"), "site[0].port is 70000; allowed: 1 to 65530"),
        (("port = 4310", "port = 4302"), "site[1].port is 4302; allowed: ports apart"),
        (('kind = "cloud"', 'kind = "fog"'), "site[1].kind is 'fog'; allowed: cloud, edge"),
        (
            ("port = 4300", 'kind = "cloud"\nport = 4300'),
            "site[1].kind is 'cloud'; allowed: one site of kind cloud; tokyo",
        ),
        (
            ("port = 4300", 'port = 4300\nhost = "nats://a b"'),
            "site[0].host is 'nats://a b'; allowed: an address or name",
        ),
        (('name = "cloud"', 'name = "tokyo"'), "site[1].name is 'tokyo'; allowed: each site once"),
        (('name = "cloud"', 'name = "a b"'), "site[1].name is 'a b'; allowed: letters, digits, - and _, 63 at most"),
        (('name = "cloud"', ""), "site[1]: the key `name` is missing"),
        (("port = 4300", "port = 4300\nbandwidth_mbit = 0"), "site[0].bandwidth_mbit is 0; allowed: above 0"),
        (("35.68", "135.68"), "site[0].position[0] is 135.68; allowed: a latitude, -90 to 90 degrees"),
        (("[[topic]]", '[auth]\nfolder = "nowhere"\n[[topic]]'), "/nowhere'; allowed: a directory that exists"),
        (("max_payload = 65536", "max_payload = 1"), "site[0].limits.max_payload is 1; allowed: 1024 to 67108864"),
        (
            ("max_payload = 65536", "max_payload = 65536\nmax_pending = 2048"),
            "site[0].limits.max_pending is 2048; allowed: 65536 (max_payload) or more",
        ),
        (('directory = "tokyo"', "directory = 3"), "site[0].store.directory is 3; expected `str`, got `int`"),
        (("mqtt_port = 1884", "mqtt_port = 0"), "site[0].mqtt_port is 0; allowed: 1 to 65535"),
        (
            ("port = 4310", "port = 4310\nmqtt_port = 1885"),
            "site[1].mqtt_port is 1885; allowed: sites with a [site.sto",
        ),
        (("port = 4300", "port = 4300\nworkers = 0"), "site[0].workers is 0; allowed: 1 or more"),
        (("[[topic]]", "[cluster]\nwarehouse = ''\n[[topic]]"), "cluster.warehouse is ''; allowed: a folder, or a URI"),
        (("quorum = 1", "quorum = -1"), "topic[0].quorum is -1; allowed: 0 or more"),
        (("quorum = 1", "quorum = 1\nkeep = 3"), "topic[0].keep is 3, an unknown key; allowed: name, managed_by"),
        (('processors = ["traffic"]', "report_seconds = 0"), "report_seconds is 0; allowed: 0.1 or more"),
        (("quorum = 1", "quorum = 2"), "topic[0].quorum is 2; allowed: 0 to 1, the replicas"),
        (
            ('replicas = ["tokyo"]', 'replicas = ["cloud"]'),
            "topic[0].replicas is 'cloud'; allowed: sites with a store: tokyo",
        ),
        (('"tokyo", "cloud"', '"tokyo", "paris"'), "topic[0].managed_by is 'paris'; allowed: sites: tokyo, cloud"),
        (('name = "gps.*"', 'name = "gps..x"'), "topic[0].name is 'gps..x'; allowed: levels separated by dots"),
        (('processors = ["traffic"]', ""), "processors is []; allowed: the modules that process gps.*"),
        (
            ("[[topic]]", '[[topic]]\nname = "gps.car"\n[[topic]]'),
            "topic[1].name is 'gps.*'; allowed: topics that do not overlap",
        ),
        (
            ("port = 4310", 'port = 4310\n[site.store]\ndirectory = "./tokyo"'),
            "/tokyo'; allowed: a directory that no other site has; tokyo has it",
        ),
        (
            ("quorum = 1", "quorum = 1\nkeep_seconds = inf"),
            "topic[0].keep_seconds is inf; allowed: above 0 to 9000000000",
        ),
        (
            ("quorum = 1", "quorum = 1\nkeep_seconds = 1e30"),
            "topic[0].keep_seconds is 1e+30; allowed: above 0 to 90000",
        ),
        (("[[site]]", "[[site"), "is not TOML"),
        ((GOOD, ""), "the key `site` is missing"),
        ((GOOD, "site = []"), "site is []; allowed: at least one [[site]] table"),
        ((GOOD, "site = 3"), "site is 3; expected `array`, got `int`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    path = write(tmp_path, GOOD.replace(*change, 1))
    with pytest.raises(InputError) as caught:
        read_configuration(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_directory_of_a_store_may_be_on_another_machine(tmp_path: Path) -> None:
    """It was refused, also by a site, the data cluster and the commands that do not use it."""
    deployment = read_configuration(write(tmp_path, GOOD.replace('directory = "tokyo"', 'directory = "elsewhere"')))
    store = deployment.site("tokyo").store
    assert store is not None
    assert store.directory == tmp_path / "elsewhere"


TENANT = """
[auth]
folder = "tokyo"
[[tenant]]
name = "rival"
processors = ["other"]
[[tenant.topic]]
name = "gps.*"
managed_by = ["cloud"]
[tenant.cluster]
warehouse = "rival"
"""


def test_tenants_have_topics_of_their_own(tmp_path: Path) -> None:
    deployment = read_configuration(write(tmp_path, GOOD + TENANT))
    main, rival = deployment.by_tenant()
    assert main is deployment
    assert rival.auth is not None
    assert (rival.auth.tenant, rival.modules, rival.sites) == ("rival", ("other",), deployment.sites)
    assert [(topic.name, topic.managed_by) for topic in rival.topics] == [("gps.*", ("cloud",))]
    assert (main.cluster, rival.data_cluster().warehouse) == (None, str(tmp_path / "rival"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('name = "rival"', 'name = "main"'), r"tenant\[0\].name is 'main'; allowed: a name besides main"),
        (('managed_by = ["cloud"]', 'managed_by = ["moon"]'), r"tenant\[0\].topic\[0\].managed_by is 'moon'"),
        (('processors = ["other"]', ""), r"tenant\[0\].processors is \[\]; allowed: the modules that process gps"),
        (
            ("[auth]", '[cluster]\nwarehouse = "rival"\n[auth]'),
            r"warehouse is 'rival'; allowed: a warehouse of its own",
        ),
        (('[auth]\nfolder = "tokyo"', ""), r"tenant\[0\].name is 'rival'; allowed: none without \[auth\]"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_named(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_configuration(write(tmp_path, GOOD + TENANT.replace(*change)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_configuration(tmp_path / "nearcast.toml")


def test_the_example_is_a_good_file() -> None:
    example = Path(__file__).parents[2] / "examples" / "nearcast.toml"
    deployment = read_configuration(example)
    assert {site.name for site in deployment.sites} == {"tokyo", "osaka", "cloud"}
