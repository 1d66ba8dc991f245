"""The workload tables that `nearcast plan` reads, from publications, reports and results.

| table | columns | read by |
|---|---|---|
| demand | node, topic, rate | plan stores --demand (publications per second by site and topic) |
| publishers | node, rate | plan stores --publishers |
| rates | subscription, rate | plan balance --rates (λ: bytes per second of each shared subscription, moving average) |
| subscriptions | subscriber, subscription | plan balance --subscriptions (a site that subscribes, from the catalog) |
| members | topic, client, role | plan homes --members |
| topics | topic, rate, popularity, locality, top_site | people; `rate` is also plan colocation's |
| traffic | node, topic, published, delivered, bytes_…, producers, consumers | people; from the reports of sites |
| relations | client, other, topics | people; the relation matrix Z of the RELOC paper, one entry per pair |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from nearcast.protocol.reports import SiteReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "CLIENT", "clients", "demand", "matching_topics", "members", "memberships", "publications", "publishers",
    "relations", "site_reports", "subscription_rates", "topics", "traffic",
]  # fmt: skip

CLIENT = "name STRING, publishes ARRAY<STRING>, subscribes ARRAY<STRING>"
_TRAFFIC = ("published", "delivered", "bytes_published", "bytes_delivered", "producers", "consumers")
_REPORTED = ", ".join(["site STRING", "topic STRING", *(f"{name} DOUBLE" for name in _TRAFFIC)])


def publications(stream: DataFrame) -> DataFrame:
    """(topic, client, site, at, bytes) of publications, from rows of the nats source; ids say who, where and when."""
    parts = f.split(f.split("id", ";")[0], ":")
    ours = stream.where(f.col("subject").startswith("pub.") & (f.size(parts) == 4))
    return ours.select(
        f.substring("subject", 5, 1000).alias("topic"),
        f.regexp_replace(parts[0], "~[0-9a-z]+$", "").alias("client"),  # without its incarnation
        parts[1].alias("site"),
        f.timestamp_micros(parts[2].cast("bigint")).alias("at"),
        f.length("payload").alias("bytes"),
    )


def demand(published: DataFrame, seconds: float) -> DataFrame:
    """Publications per second at each site for each topic."""
    counted = published.groupBy(f.col("site").alias("node"), "topic").agg((f.count("*") / seconds).alias("rate"))
    return counted.orderBy("node", "topic")


def publishers(published: DataFrame, seconds: float) -> DataFrame:
    """Publications per second that enter at each site."""
    counted = published.groupBy(f.col("site").alias("node")).agg((f.count("*") / seconds).alias("rate"))
    return counted.orderBy("node")


def site_reports(stream: DataFrame) -> DataFrame:
    """A row for each topic in each site's report and one without a topic for the report, from rows of the source."""
    return stream.where("payload IS NOT NULL").select("payload").mapInArrow(_read_reports, _REPORTED)


def traffic(reported: DataFrame) -> DataFrame:
    """What clients published and were delivered at each site, per second, and how many clients that were: means over
    the site's reports. A topic that is not in a report had no traffic then."""
    reports = reported.where("topic IS NULL").groupBy("site").agg(f.count("*").alias("reports"))
    told = reported.where("topic IS NOT NULL").join(reports, "site")
    means = [(f.sum(name) / f.max("reports")).alias(name) for name in _TRAFFIC]
    return told.groupBy(f.col("site").alias("node"), "topic").agg(*means).orderBy("node", "topic")


def _read_reports(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    decoder = msgspec.msgpack.Decoder(SiteReport)
    schema = pa.schema([("site", pa.string()), ("topic", pa.string()), *((name, pa.float64()) for name in _TRAFFIC)])
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for payload in batch.column("payload").to_pylist():
            try:
                report = decoder.decode(payload)
            except msgspec.DecodeError:
                continue  # of another version; one report of many
            rows.append((report.site, None, *(None for _ in _TRAFFIC)))
            for t in report.topics:
                figures = (t.messages_out, t.messages_in, t.bytes_out, t.bytes_in, t.producers, t.consumers)
                rows.append((report.site, t.topic, *figures))
        yield pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def topics(asked: DataFrame) -> DataFrame:
    """Rate of each topic, its share of all (popularity), and the share of its busiest site (locality)."""
    by_topic = asked.groupBy("topic").agg(
        f.sum("rate").alias("rate"),
        f.max_by("node", f.struct("rate", "node")).alias("top_site"),
        (f.max("rate") / f.sum("rate")).alias("locality"),
    )
    everything = Window.partitionBy()
    shared = by_topic.withColumn("popularity", f.col("rate") / f.sum("rate").over(everything))
    return shared.select("topic", "rate", "popularity", "locality", "top_site").orderBy(f.desc("rate"), "topic")


def subscription_rates(results: DataFrame, now: float, bucket: float = 10.0, weight: float = 0.3) -> DataFrame:
    """λ of each shared subscription: bytes per second, averaged over buckets of time with fading weights.

    The newest bucket counts `weight`, the one before it weight · (1 - weight), and so on: an exponential moving
    average, as the load balancing paper uses to avoid instant peaks.
    """
    age = f.floor((f.lit(now) - f.col("at").cast("double")) / bucket)
    sizes = results.select(
        f.concat_ws(".", "channel", "key").alias("subscription"), f.length("payload").alias("bytes"), age.alias("age")
    ).where("age >= 0")
    fading = f.pow(f.lit(1 - weight), f.col("age")) * weight / bucket
    return sizes.groupBy("subscription").agg(f.sum(f.col("bytes") * fading).alias("rate")).orderBy("subscription")


def clients(kept: DataFrame) -> DataFrame:
    """(name, publishes, subscribes) of clients, from the coordinator's records as rows of the source."""
    read = f.from_json(f.col("payload").cast("string"), CLIENT).alias("client")
    return kept.where("payload IS NOT NULL").select(read).select("client.*").where("name IS NOT NULL")  # else it left


def memberships(known: DataFrame, role: str) -> DataFrame:
    """(topic, client) of what clients say they publish or subscribe to; a subscription may be a pattern."""
    return known.select(f.explode(role).alias("topic"), f.col("name").alias("client"))


def matching_topics(subscribed: DataFrame, known: DataFrame) -> DataFrame:
    """The same with every pattern replaced by the known topics it stands for."""
    patterns = f.col("topic").contains("*") | f.col("topic").endswith(">")
    like = f.replace(f.col("topic"), f.lit("*"), f.lit(r"\E[^.]+\Q"))
    like = f.concat(f.lit(r"^\Q"), f.replace(like, f.lit(">"), f.lit(r"\E.+\Q")), f.lit(r"\E$"))
    wanted = subscribed.where(patterns).select(like.alias("like"), "client")
    found = known.select("topic").distinct().join(wanted, f.expr("topic RLIKE like")).select("topic", "client")
    return subscribed.where(~patterns).union(found)


def members(published: DataFrame, subscribed: DataFrame) -> DataFrame:
    """(topic, client, role): who publishes to a topic, who subscribes (topic, client), who does both."""
    roles = published.select("topic", "client").distinct().withColumn("pub", f.lit(True)).join(
        subscribed.select("topic", "client").distinct().withColumn("sub", f.lit(True)), ["topic", "client"], "full"
    )  # fmt: skip
    role = f.when(f.col("pub") & f.col("sub"), "both").when(f.col("pub"), "pub").otherwise("sub")
    return roles.select("topic", "client", role.alias("role")).orderBy("topic", "client")


def relations(belonging: DataFrame, topic_limit: int = 1000) -> DataFrame:
    """Z, sparse: how many topics each pair of clients shares. Topics with very many members tell nothing and are left
    out, as in the home planner."""
    crowd = belonging.groupBy("topic").agg(f.count("*").alias("size")).where(f.col("size") <= topic_limit)
    kept = belonging.join(crowd, "topic").select("topic", "client")
    pairs = kept.join(kept.withColumnRenamed("client", "other"), "topic").where("client < other")
    return pairs.groupBy("client", "other").agg(f.count("*").alias("topics")).orderBy("client", "other")
