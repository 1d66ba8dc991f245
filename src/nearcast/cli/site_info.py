"""One site as a person reads it: figures with their units, a table of its topics and one of its workers."""

from __future__ import annotations

from typing import Any

__all__ = ["site_fields", "topic_rows", "worker_rows"]


def site_fields(info: dict[str, Any]) -> dict[str, str]:
    """What there is once for each site."""
    fields = {"site": f"{info['site']}, {info['kind']}, {info['state']}", "address": info["url"]}
    fields["clients"] = f"{info['clients']} registered"
    broker = info.get("broker")
    if broker is None:
        return fields | {"report": "none yet"}
    devices = f", {broker['mqtt_connections']} of MQTT devices" if broker["mqtt_connections"] else ""
    fields["connections"] = f"{broker['connections']}{devices}"
    for way in ("in", "out"):
        rate, volume = broker[f"messages_{way}"], broker[f"bytes_{way}"] / 1000
        fields[f"messages {way}"] = f"{rate:.1f}/s, {volume:.1f} kB/s"
    fields |= {name: f"{broker[name]:.1%} in use" for name in ("cpu", "memory", "network")}
    ways = sorted(info["round_trips"].items(), key=lambda way: way[1])
    fields["round trips"] = ", ".join(f"{site} {ms:.1f} ms" for site, ms in ways) or "not measured"
    fields["store"] = "up" if info["store"] else "none, or it does not answer"
    return fields


def topic_rows(info: dict[str, Any]) -> list[dict[str, str]]:
    """The topics that clients of the site use."""
    return [
        {
            "topic": topic["topic"],
            "publishers": f"{topic['producers']:.0f}",
            "subscribers": f"{topic['consumers']:.0f}",
            "published": f"{topic['messages_out']:.1f}/s",
            "received": f"{topic['messages_in']:.1f}/s",
        }
        for topic in info["topics"]
    ]


def worker_rows(info: dict[str, Any]) -> list[dict[str, str]]:
    """The workers of the site, a row for each of their topics."""
    rows = []
    for worker in info["workers"]:
        for topic, rate, processing, waiting, p90, letters, _ in worker["topics"]:
            rows.append(
                {
                    "worker": worker["worker"],
                    "busy": f"{worker['busy']:.1%}",
                    "topic": topic,
                    "rate": f"{rate:.1f}/s",
                    "processing": f"{processing:.2f} ms",
                    "p90": f"{p90:.1f} ms" if p90 else "-",
                    "waiting": str(waiting),
                    "dead letters": str(letters),
                }
            )
    return rows
