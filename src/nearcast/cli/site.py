"""`nearcast site …`: run a site on this machine, list the registered ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.options import ConfigOption, RunDirectoryOption
from nearcast.cli.output import JsonOption, print_fields, print_json, print_rows
from nearcast.cli.serve import serve

app = typer.Typer()


@app.command()
def run(
    name: Annotated[str, typer.Option(help="Which site of the configuration this machine is.")],
    config: ConfigOption = Path("nearcast.toml"),
    run_directory: RunDirectoryOption = None,
) -> None:
    """Start the site's broker, store and workers, keep them up, and stop them on Ctrl-C.

    Example: nearcast site run --config nearcast.toml --name tokyo
    """
    serve(config, run_directory, [name])


@app.command("ls")
def list_sites(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the registered sites. Example: nearcast site ls"""
    rows = call_leader(url, "site", "ls")
    if not as_json:
        rows = [{**row, "messages_out": f"{row['messages_out']:.1f}/s", "cpu": f"{row['cpu']:.1%}"} for row in rows]
    print_rows(rows, as_json, "No site is registered. A site registers with its next report.")


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show one site and its last report. Example: nearcast site info tokyo"""
    found = call_leader(url, "site", "info", name=name)
    if as_json:
        print_json(found)
        return
    print_fields(site_fields(found), False)
    if "broker" in found:
        typer.echo()
        print_rows(topic_rows(found), False, "No client of this site uses a topic.")
        typer.echo()
        print_rows(worker_rows(found), False, "No worker of this site has a topic.")


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
    down = "down: it does not answer, or cannot write; the site's log says why"
    fields["store"] = down if info["store_state"] == "down" else info["store_state"]
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
