"""A deployment: all sites and topics that belong together, and the modules that hold its processors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from nearcast.domain.names import NAME_PATTERN, NAME_RULE
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.domain.topic import TopicSpec, matches
from nearcast.errors import InputError

if TYPE_CHECKING:
    from nearcast.domain.site import SiteSpec

__all__ = ["AuthSpec", "ClusterSpec", "Deployment", "TenantSpec"]


class AuthSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `[auth]` says. folder: made by `nearcast auth init`. tenant: whose topics these are."""

    folder: Path
    tenant: Annotated[str, Meta(pattern=rf"^{NAME_PATTERN}\Z", description=NAME_RULE)] = "main"


class ClusterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `[cluster]` in `nearcast.toml` says.

    warehouse: a folder, or a URI that all of Spark's machines reach. checkpoints: the same, for Spark's checkpoints.
    batch_rows: records in a micro-batch at most. analyse_every: seconds between workload tables, 0 for none.
    keep_results: seconds for which results stay in the warehouse, in whole days. channel_seconds: how long one
    evaluation of a channel may take; a slower channel is switched off. spark: further Spark settings.
    """

    warehouse: Annotated[str, Meta(min_length=1, description="a folder, or a URI such as s3://bucket/nearcast")]
    checkpoints: str = ""
    master: str = "local[*]"
    batch_rows: Annotated[int, Meta(ge=1)] = 250_000
    analyse_every: Annotated[float, Meta(ge=0)] = 60.0
    keep_results: Annotated[float, Meta(ge=0)] = 7 * 86400.0
    channel_seconds: Annotated[float, Meta(ge=1)] = 60.0
    spark: dict[str, str] = {}


@dataclass(frozen=True)
class TenantSpec:
    """A further tenant of the same sites: its topics, the modules that hold its processors, and its data cluster."""

    name: str
    topics: tuple[TopicSpec, ...] = ()
    modules: tuple[str, ...] = ()
    cluster: ClusterSpec | None = None


@dataclass(frozen=True)
class Deployment:
    """What one `nearcast.toml` says. report_seconds: how often a site reports to the coordinator, if there is one.

    insecure: sites may listen beyond loopback without credentials and TLS.
    tenants: further ones, beside that of `auth`.
    """

    sites: tuple[SiteSpec, ...]
    topics: tuple[TopicSpec, ...] = ()
    modules: tuple[str, ...] = ()
    cluster: ClusterSpec | None = None
    report_seconds: float = 5.0
    auth: AuthSpec | None = None
    insecure: bool = False
    processor_limits: ProcessorLimits = field(default_factory=ProcessorLimits)
    tenants: tuple[TenantSpec, ...] = ()

    def by_tenant(self) -> tuple[Deployment, ...]:
        """What each tenant has of it: its own topics and processors, at the same sites. This one first."""
        if self.auth is None:
            return (self,)
        others = (
            replace(
                self,
                topics=tenant.topics,
                modules=tenant.modules,
                cluster=tenant.cluster,
                auth=msgspec.structs.replace(self.auth, tenant=tenant.name),
                tenants=(),
            )
            for tenant in self.tenants
        )
        return (self, *others)

    def site(self, name: str) -> SiteSpec:
        """The site of that name."""
        for site in self.sites:
            if site.name == name:
                return site
        known = ", ".join(site.name for site in self.sites)
        raise InputError(f"site {name!r} is not in the configuration; it has: {known}")

    def cloud(self) -> SiteSpec:
        """The site that keeps the registry: the cloud, with a store."""
        found = [site for site in self.sites if site.kind == "cloud" and site.store is not None]
        if not found:
            raise InputError('datasets and channels need a site of kind = "cloud" with a [site.store]; there is none')
        return found[0]

    def data_cluster(self) -> ClusterSpec:
        """The settings of the data cluster."""
        if self.cluster is None:
            raise InputError("the configuration has no [cluster]; add one with a `warehouse`")
        return self.cluster

    def peers(self, name: str) -> tuple[SiteSpec, ...]:
        """All other sites."""
        return tuple(site for site in self.sites if site.name != name)

    def topic(self, name: str) -> TopicSpec:
        """What is promised for a topic; a topic nobody configured is delivered as published and kept nowhere."""
        return next((spec for spec in self.topics if matches(spec.name, name)), TopicSpec(name))

    def managed_at(self, site: str) -> tuple[TopicSpec, ...]:
        """The topics whose processor runs at a site."""
        return tuple(spec for spec in self.topics if site in spec.managed_by)
