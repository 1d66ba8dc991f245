"""`nearcast.toml`: read, checked, turned into a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nearcast.config.validation import read_toml
from nearcast.domain.deployment import AuthSpec, ClusterSpec, Deployment, TenantSpec
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.domain.ranges import Name
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec, check_pattern, overlaps
from nearcast.errors import InputError

__all__ = ["read_configuration", "read_sites"]


class _TopicTable(TopicSpec, frozen=True, forbid_unknown_fields=True):
    """A `[[topic]]` table. A TopicSpec in a message may have keys of a later version, a table may not."""


class _TenantTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[tenant]]` table: a further tenant of the same sites."""

    name: Name
    topic: tuple[_TopicTable, ...] = ()
    processors: tuple[str, ...] = ()
    cluster: ClusterSpec | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    site: Annotated[tuple[SiteSpec, ...], Meta(min_length=1, description="at least one [[site]] table")]
    topic: tuple[_TopicTable, ...] = ()
    processors: tuple[str, ...] = ()
    cluster: ClusterSpec | None = None
    report_seconds: Annotated[float, Meta(ge=0.1)] = 5.0
    processor_limits: ProcessorLimits = ProcessorLimits()
    auth: AuthSpec | None = None
    insecure: bool = False
    tenant: tuple[_TenantTable, ...] = ()


def read_sites(path: Path) -> tuple[SiteSpec, ...]:
    """The sites of a configuration file whose `[auth]` folder is still to be made."""

    def anywhere(kind: type, value: Any) -> Path:
        return (path.parent / str(value)).resolve()

    return read_toml(path, _File, anywhere).site


def read_configuration(path: Path) -> Deployment:
    """Read a configuration file; relative directories are relative to it.

    Directories of stores need not exist: most of them are on other machines. A site looks for its own when it starts.
    """

    def directory(kind: type, value: Any) -> Path:
        if not isinstance(value, str):
            raise TypeError(f"expected `str`, got `{type(value).__name__}`")
        return (path.parent / value).resolve()

    file = read_toml(path, _File, directory)
    try:
        if file.auth is not None:
            folder = file.auth.folder
            _require(folder.is_dir(), "auth.folder", str(folder), "a directory that exists; make it first")
        _check_sites(file.site)
        _check_topics(file.site, file.topic, file.processors)
        _check_tenants(file)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    tenants = tuple(
        TenantSpec(one.name, _topics(one.topic), one.processors, _cluster(path, one.cluster)) for one in file.tenant
    )
    return Deployment(
        file.site,
        _topics(file.topic),
        file.processors,
        _cluster(path, file.cluster),
        file.report_seconds,
        file.auth,
        file.insecure,
        file.processor_limits,
        tenants,
    )


def _topics(tables: tuple[_TopicTable, ...]) -> tuple[TopicSpec, ...]:
    return tuple(TopicSpec(*msgspec.structs.astuple(topic)) for topic in tables)


def _cluster(path: Path, cluster: ClusterSpec | None) -> ClusterSpec | None:
    if cluster is None:
        return None
    folders = {key: _folder(path, getattr(cluster, key)) for key in ("warehouse", "checkpoints")}
    return msgspec.structs.replace(cluster, **folders)


def _folder(path: Path, text: str) -> str:
    """A path relative to the file; a URI as it is, and nothing, too."""
    return text if not text or "://" in text else str((path.parent / text).resolve())


def _require(holds: bool, key: str, value: Any, allowed: str) -> None:
    if not holds:
        raise InputError(f"{key} is {value!r}; allowed: {allowed}")


def _check_sites(sites: tuple[SiteSpec, ...]) -> None:
    """Names and ports that are unique, and settings that need each other."""
    taken: dict[tuple[str, int], str] = {}
    directories: dict[tuple[str, Path], str] = {}
    clouds = [site.name for site in sites if site.kind == "cloud"]
    for n, site in enumerate(sites):
        at, limits = f"site[{n}]", site.limits
        _require(site.name not in {other.name for other in sites[:n]}, f"{at}.name", site.name, "each site once")
        one_cloud = f"one site of kind cloud; {clouds[0] if clouds else ''} is it"
        _require(site.kind != "cloud" or site.name == clouds[0], f"{at}.kind", site.kind, one_cloud)
        with_store = "sites with a [site.store] (MQTT keeps sessions)"
        _require(site.mqtt_port is None or site.store is not None, f"{at}.mqtt_port", site.mqtt_port, with_store)
        if site.store is not None:  # sites of other machines may have a directory of that name, too
            first = directories.setdefault((site.host, site.store.directory), site.name)
            own = f"a directory that no other site has; {first} has it"
            _require(first == site.name, f"{at}.store.directory", str(site.store.directory), own)
        least = f"{limits.max_payload} (max_payload) or more"
        _require(limits.max_pending >= limits.max_payload, f"{at}.limits.max_pending", limits.max_pending, least)
        for what, port in site.ports().items():
            owner = f"{site.name}'s {what}"
            other = taken.setdefault((site.host, port), owner)
            free = f"ports apart from each other; {owner} {port} is {other}"
            _require(other == owner, f"{at}.port", site.port, free)


def _check_tenants(file: _File) -> None:
    """Tenants with names of their own, each with topics as above."""
    names = [file.auth.tenant] if file.auth is not None else []
    warehouses = [file.cluster.warehouse] if file.cluster is not None else []
    for n, tenant in enumerate(file.tenant):
        _require(
            file.auth is not None, f"tenant[{n}].name", tenant.name, "none without [auth]: see `nearcast auth init`"
        )
        _require(tenant.name not in names, f"tenant[{n}].name", tenant.name, f"a name besides {', '.join(names)}")
        names.append(tenant.name)
        if tenant.cluster is not None:
            given = f"tenant[{n}].cluster.warehouse", tenant.cluster.warehouse
            _require(tenant.cluster.warehouse not in warehouses, *given, "a warehouse of its own")
            warehouses.append(tenant.cluster.warehouse)
        _check_topics(file.site, tenant.topic, tenant.processors, f"tenant[{n}].")


def _check_topics(
    given_sites: tuple[SiteSpec, ...], topics: tuple[_TopicTable, ...], processors: tuple[str, ...], where: str = ""
) -> None:
    """Topics that do not overlap (a message belongs to one topic), at sites that exist, with processors."""
    sites = [site.name for site in given_sites]
    stores = [site.name for site in given_sites if site.store is not None]
    for n, topic in enumerate(topics):
        at = f"{where}topic[{n}]"
        try:
            check_pattern(topic.name)
        except InputError as error:
            raise InputError(f"{at}.name: {error}") from None
        for other in topics[:n]:
            apart = f"topics that do not overlap {other.name!r}"
            _require(not overlaps(topic.name, other.name), f"{at}.name", topic.name, apart)
        for key, given, what, allowed in (
            ("managed_by", topic.managed_by, "sites", sites),
            ("replicas", topic.replicas, "sites with a store", stores),
        ):
            for name in given:
                _require(name in allowed, f"{at}.{key}", name, f"{what}: {', '.join(allowed) or 'there is none'}")
            _require(len(set(given)) == len(given), f"{at}.{key}", list(given), "each site once")
        replicas = len(topic.replicas)
        _require(topic.quorum <= replicas, f"{at}.quorum", topic.quorum, f"0 to {replicas}, the replicas")
    processed = ", ".join(topic.name for topic in topics if topic.processed)
    _require(bool(processors) or not processed, f"{where}processors", [], f"the modules that process {processed}")
