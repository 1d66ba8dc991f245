"""Sites that are not started because others could do harm: the command as it is typed, and no server is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from tests.system.test_cli import NEARCAST, run

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.certificates import make_certificate
from nearcast.auth.deployment_keys import add_tls, make_deployment_keys
from nearcast.domain.site import SiteSpec
from nearcast.site.ports import free_ports

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None,
    reason="a network of its own is for root only",
)
IN_A_NETWORK_OF_ITS_OWN = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def configuration(folder: Path, *lines: str, host: str = "0.0.0.0") -> tuple[Path, SiteSpec]:
    site = SiteSpec("edge", host=host, port=free_ports())
    file = folder / "nearcast.toml"
    file.write_text("\n".join([*lines, "[[site]]", 'name = "edge"', f'host = "{host}"', f"port = {site.port}"]))
    return file, site


async def refused(file: Path, site: SiteSpec) -> str:
    """What the command says when it ends; nobody listens then."""
    code, _, told = await run("site", "run", "--config", str(file), "--name", "edge")
    assert code == 2, told
    assert "Traceback" not in told
    ports = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert site.port not in ports
    return told


async def test_an_open_site_beyond_loopback_is_refused(tmp_path: Path) -> None:
    told = await refused(*configuration(tmp_path))
    assert "site edge listens on 0.0.0.0 without credentials and TLS: make them with `nearcast auth init`" in told
    make_deployment_keys(tmp_path / "auth", [SiteSpec("edge")])
    told = await refused(*configuration(tmp_path, "[auth]", 'folder = "auth"'))
    assert "site edge listens on 0.0.0.0 without TLS" in told


async def test_a_site_whose_certificate_has_expired_is_refused(tmp_path: Path) -> None:
    file, site = configuration(tmp_path, "[auth]", 'folder = "auth"', host="127.0.0.1")
    add_tls(make_deployment_keys(tmp_path / "auth", [site]), [site])
    make_certificate(AuthFolder.open(tmp_path / "auth").ca_file.parent, "edge", ["127.0.0.1"], days=-0.001)
    told = await refused(file, site)
    assert "the certificate of site edge" in told
    assert "expired on" in told
    assert "renew it with: nearcast auth tls" in told


@needs_namespaces
@pytest.mark.parametrize(
    ("auth", "shown"),
    [
        ([], "INSECURE: anybody in this network may do anything"),
        (["[auth]", 'folder = "auth"'], "INSECURE: anybody in this network may read everything"),
    ],
)
async def test_an_insecure_site_says_so_in_its_log_and_its_first_line(
    tmp_path: Path, auth: list[str], shown: str
) -> None:
    file, site = configuration(tmp_path, "insecure = true", *auth)
    if auth:
        make_deployment_keys(tmp_path / "auth", [site])
    command = [*IN_A_NETWORK_OF_ITS_OWN, *NEARCAST, "site", "run", "--config", str(file), "--name", "edge"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            first = (await process.stdout.readline()).decode()
            process.send_signal(signal.SIGINT)
            _, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert shown in first, log.decode()
    assert "site edge: INSECURE: listens on 0.0.0.0 without" in log.decode()
    assert process.returncode == 0
