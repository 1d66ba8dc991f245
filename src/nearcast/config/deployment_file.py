"""`nearcast.toml`: read, checked, turned into a deployment. A refusal names the key, the value and what is allowed."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from nearcast.domain.cluster import ClusterSpec
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import Limits, SiteSpec, StoreSpec, check_name
from nearcast.domain.topic import TopicSpec, check_pattern, overlaps
from nearcast.errors import InputError

__all__ = ["read_configuration"]


class _Store(msgspec.Struct):
    directory: str
    max_bytes: int = 10 * 2**30
    sync_always: bool = False


class _Site(msgspec.Struct):
    name: str
    kind: Literal["edge", "cloud"] = "edge"
    position: tuple[float, float] | None = None
    host: str = "127.0.0.1"
    port: int = 4222
    mqtt_port: int | None = None
    workers: int = 1
    bandwidth_mbit: float | None = None
    store: _Store | None = None
    limits: Limits = Limits()


class _Topic(msgspec.Struct):
    name: str
    managed_by: list[str] = []
    replicas: list[str] = []
    quorum: int = 0
    bound_ms: float | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None


class _File(msgspec.Struct):
    site: list[_Site]
    topic: list[_Topic] = []
    processors: list[str] = []
    cluster: ClusterSpec | None = None
    report_seconds: float = 5.0


T = TypeVar("T")


def read_configuration(path: Path) -> Deployment:
    """Read a configuration file; relative store directories are relative to it."""
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not TOML: {error}") from None
    _refuse_unknown_keys(path, raw, _File, "")
    try:
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {_explain(error, raw)}") from None
    check = _Checks(path)
    check.that(bool(file.site), "site", [], "at least one [[site]] table")
    sites = tuple(check.site(n, site) for n, site in enumerate(file.site))
    check.unique("site", [site.name for site in sites])
    check.ports(sites)
    topics = tuple(check.topic(n, topic, sites) for n, topic in enumerate(file.topic))
    check.topics_apart(topics)
    managed = [topic.name for topic in topics if topic.processed]
    check.that(not managed or bool(file.processors), "processors", [], f"the modules that process {', '.join(managed)}")
    check.at_least("report_seconds", file.report_seconds, 0.1)
    return Deployment(
        sites, topics, tuple(file.processors), check.cluster(file.cluster), report_seconds=file.report_seconds
    )


class _Checks:
    """What types cannot say."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def that(self, holds: bool, key: str, value: Any, allowed: str) -> None:
        if not holds:
            raise InputError(f"{self._path}: {key} is {value!r}; allowed: {allowed}")

    def at_least(self, key: str, value: float | None, least: float) -> None:
        self.that(value is None or value >= least, key, value, f"{least:g} or more")

    def named(self, key: str, check: Any, *args: str) -> str:
        try:
            return str(check(*args))
        except InputError as error:
            raise InputError(f"{self._path}: {key}: {error}") from None

    def unique(self, what: str, names: list[str]) -> None:
        for n, name in enumerate(names):
            self.that(name not in names[:n], f"{what}[{n}].name", name, f"each {what} once")

    def site(self, n: int, site: _Site) -> SiteSpec:
        at = f"site[{n}]"
        self.named(f"{at}.name", check_name, site.name, "site")
        self.that(1 <= site.port <= 65531, f"{at}.port", site.port, "1 to 65531 (five ports from it on are used)")
        if site.mqtt_port is not None:
            self.that(1 <= site.mqtt_port <= 65535, f"{at}.mqtt_port", site.mqtt_port, "1 to 65535")
            self.that(
                site.store is not None,
                f"{at}.mqtt_port",
                site.mqtt_port,
                "sites with a [site.store] (MQTT keeps sessions)",
            )
        if site.position is not None:
            latitude, longitude = site.position
            inside = -90 <= latitude <= 90 and -180 <= longitude <= 180
            self.that(inside, f"{at}.position", list(site.position), "[latitude, longitude] in degrees")
        self.at_least(f"{at}.workers", site.workers, 1)
        positive = site.bandwidth_mbit is None or site.bandwidth_mbit > 0
        self.that(positive, f"{at}.bandwidth_mbit", site.bandwidth_mbit, "above 0")
        self.at_least(f"{at}.limits.max_payload", site.limits.max_payload, 1024)
        self.that(
            site.limits.max_payload <= 64 << 20, f"{at}.limits.max_payload", site.limits.max_payload, "up to 64 MiB"
        )
        self.at_least(f"{at}.limits.max_connections", site.limits.max_connections, 1)
        self.at_least(f"{at}.limits.max_pending", site.limits.max_pending, site.limits.max_payload)
        store = None
        if site.store is not None:
            self.at_least(f"{at}.store.max_bytes", site.store.max_bytes, 1 << 20)
            directory = (self._path.parent / site.store.directory).resolve()
            self.that(
                directory.is_dir(),
                f"{at}.store.directory",
                site.store.directory,
                "a directory that is there; make it first",
            )
            store = StoreSpec(directory, site.store.max_bytes, site.store.sync_always)
        return SiteSpec(
            site.name, site.kind, site.position, site.host, site.port, site.mqtt_port, store, site.limits, site.workers,
            site.bandwidth_mbit,
        )  # fmt: skip

    def cluster(self, cluster: ClusterSpec | None) -> ClusterSpec | None:
        if cluster is None:
            return None
        self.that(bool(cluster.warehouse), "cluster.warehouse", "", "a folder, or a URI such as s3://bucket/nearcast")
        self.at_least("cluster.batch_rows", cluster.batch_rows, 1)
        self.at_least("cluster.analyse_every", cluster.analyse_every, 0)
        self.at_least("cluster.keep_results", cluster.keep_results, 0)
        checkpoints = self.folder(cluster.checkpoints) if cluster.checkpoints else ""
        return replace(cluster, warehouse=self.folder(cluster.warehouse), checkpoints=checkpoints)

    def folder(self, text: str) -> str:
        """A path relative to the file; a URI as it is."""
        return text if "://" in text else str((self._path.parent / text).resolve())

    def ports(self, sites: tuple[SiteSpec, ...]) -> None:
        taken: dict[tuple[str, int], str] = {}
        for n, site in enumerate(sites):
            for what, port in site.ports().items():
                other = taken.setdefault((site.host, port), f"{site.name}'s {what}")
                mine = f"{site.name}'s {what}"
                self.that(
                    other == mine,
                    f"site[{n}].port",
                    site.port,
                    f"ports apart from each other; {mine} {port} is {other}",
                )

    def topic(self, n: int, topic: _Topic, sites: tuple[SiteSpec, ...]) -> TopicSpec:
        at = f"topic[{n}]"
        self.named(f"{at}.name", check_pattern, topic.name)
        names = [site.name for site in sites]
        stores = [site.name for site in sites if site.store is not None]
        for key, given, allowed in (("managed_by", topic.managed_by, names), ("replicas", topic.replicas, stores)):
            for name in given:
                what = "sites" if key == "managed_by" else "sites with a store"
                self.that(name in allowed, f"{at}.{key}", name, f"{what}: {', '.join(allowed) or 'there is none'}")
            self.that(len(set(given)) == len(given), f"{at}.{key}", given, "each site once")
        self.that(
            0 <= topic.quorum <= len(topic.replicas),
            f"{at}.quorum",
            topic.quorum,
            f"0 to {len(topic.replicas)}, the replicas",
        )
        for key in ("bound_ms", "keep_seconds", "keep_bytes"):
            value = getattr(topic, key)
            self.that(value is None or value > 0, f"{at}.{key}", value, "above 0")
        return TopicSpec(
            topic.name, tuple(topic.managed_by), tuple(topic.replicas), topic.quorum,
            topic.bound_ms, topic.keep_seconds, topic.keep_bytes,
        )  # fmt: skip

    def topics_apart(self, topics: tuple[TopicSpec, ...]) -> None:
        """A message belongs to one topic: two that overlap would process or keep it twice."""
        for n, topic in enumerate(topics):
            for other in topics[:n]:
                apart = not overlaps(topic.name, other.name)
                self.that(apart, f"topic[{n}].name", topic.name, f"topics that do not overlap {other.name!r}")


def _refuse_unknown_keys(path: Path, raw: Any, kind: Any, at: str) -> None:
    """Walk the file beside the structures it is read into."""
    if isinstance(raw, list):
        for n, item in enumerate(raw):
            _refuse_unknown_keys(path, item, kind, f"{at}[{n}]")
        return
    if not isinstance(raw, dict):
        return
    known = get_type_hints(kind)
    for key, value in raw.items():
        where = f"{at}.{key}" if at else key
        if key not in known:
            raise InputError(f"{path}: {where} is {value!r}, an unknown key; allowed: {', '.join(known)}")
        for nested in (_Site, _Store, Limits, _Topic, ClusterSpec):
            if nested in _parts(known[key]):
                _refuse_unknown_keys(path, value, nested, where)


def _parts(annotation: Any) -> tuple[Any, ...]:
    arguments = getattr(annotation, "__args__", ())
    return (annotation, *arguments)


def _explain(error: msgspec.ValidationError, raw: Any) -> str:
    """msgspec says what it expected and where; add the value that is there."""
    found = re.fullmatch(r"(?P<what>.*?)(?: - at `\$\.?(?P<at>.*)`)?", str(error), re.DOTALL)
    at = (found["at"] if found else None) or ""
    value: Any = raw
    for step in re.findall(r"[^.\[\]]+", at):
        value = value[int(step)] if step.isdigit() and isinstance(value, list) else value.get(step)
    what = found["what"] if found else str(error)
    if what.startswith("Object missing required field"):
        return f"{at or 'the file'}: {what.replace('Object missing required field', 'the key').rstrip()} is missing"
    return f"{at} is {value!r}; {what[0].lower()}{what[1:]}"
