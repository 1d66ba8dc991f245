"""`nearcast lab wan …`: a wide area on this machine, up until it is taken down.

`lab run …` is in `scenarios` and `experiments`, `lab chaos` in `chaos`.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as Screen

from nearcast.cli import experiments, scenarios
from nearcast.cli.chaos import chaos
from nearcast.cli.output import JsonOption, open_console, print_json, print_rows
from nearcast.errors import InputError
from nearcast.lab import wan
from nearcast.lab.wan.topology import MS_PER_KM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearcast.lab.wan.control_socket import LinkFields, LinkState

__all__ = ["app"]

app = typer.Typer()
commands = typer.Typer()
app.add_typer(
    commands,
    name="wan",
    no_args_is_help=True,
    help="A network namespace per node, with the delays of a wide area between them.",
)

experiments.add_commands(scenarios.app)
app.add_typer(
    scenarios.app,
    name="run",
    no_args_is_help=True,
    help="The papers' experiments, and whole scenarios on an emulated wide area.",
)

app.command()(chaos)

Name = Annotated[str, typer.Option("--name", help="The area, when more than one is up.")]
DEFAULT_NAME = "wan"

MILLISECONDS = {"": 1.0, "ms": 1.0, "s": 1000.0, "us": 0.001}
FRACTIONS = {"": 1.0, "%": 0.01}
MEGABITS = {"": 1.0, "kbit": 0.001, "mbit": 1.0, "gbit": 1000.0}


@commands.command()
def up(
    topology: Annotated[
        Path,
        typer.Option(
            help="CSV or Parquet: source,destination,rtt_ms[,jitter_ms,loss,mbit] "
            "or node,latitude,longitude[,access_ms]."
        ),
    ],
    ms_per_km: Annotated[float, typer.Option(help="One-way delay of distance, for positions.")] = MS_PER_KM,
    seed: Annotated[int, typer.Option(help="Of what is random: loss and jitter.")] = 0,
    name: Name = DEFAULT_NAME,
    as_json: JsonOption = False,
) -> None:
    """Start a wide area and leave it running. Example: nearcast lab wan up --topology cities.csv"""
    # Tables need pyarrow and NumPy, which take half a second to load; the other commands do not.
    from nearcast.cli.topology_file import read_topology

    area, _ = wan.start(read_topology(topology, ms_per_km), name, seed=seed)
    nodes = area.topology.nodes
    rows = [{"node": node, "namespace": area.namespace(node), "address": area.address(node)} for node in nodes]
    print_rows(rows, as_json, "It has no nodes.")


@commands.command()
def run(
    node: Annotated[str, typer.Option("--in", help="The node to run at.")],
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    name: Name = DEFAULT_NAME,
) -> None:
    """Run a command at a node; its exit code is ours.

    Example: nearcast lab wan run --in tokyo -- ping -c 3 10.77.0.2
    """
    arguments = wan.find(name).command(node, *command)
    if shutil.which(command[0]) is None:
        raise InputError(f"there is no command {command[0]!r}")
    os.execvp(arguments[0], arguments)


@commands.command(name="set")
def change(
    a: Annotated[str, typer.Argument(help="A node.")],
    b: Annotated[str, typer.Argument(help="Another node, or 'all': every other.")],
    delay: Annotated[str | None, typer.Option(help="One way: 40ms, 1.5s.")] = None,
    jitter: Annotated[str | None, typer.Option(help="The delay varies by at most this: 5ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="The share of packets lost: 1%, 0.01.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="10mbit, 500kbit, 1gbit, or none: no limit.")] = None,
    cut: Annotated[bool | None, typer.Option("--cut/--heal", help="Let nothing through, or all again.")] = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from the first node to the second.")] = False,
    name: Name = DEFAULT_NAME,
) -> None:
    """Change the link between two nodes, both ways, from now on.

    Example: nearcast lab wan set tokyo seoul --delay 60ms
    """
    fields: LinkFields = {}
    if delay is not None:
        fields["delay_ms"] = quantity("--delay", delay, MILLISECONDS)
    if jitter is not None:
        fields["jitter_ms"] = quantity("--jitter", jitter, MILLISECONDS)
    if loss is not None:
        fields["loss"] = quantity("--loss", loss, FRACTIONS)
    if bandwidth is not None:
        fields["mbit"] = None if bandwidth == "none" else quantity("--bandwidth", bandwidth, MEGABITS)
    if cut is not None:
        fields["cut"] = cut
    if not fields:
        raise InputError("nothing to set: give --delay, --jitter, --loss, --bandwidth, --cut or --heal")
    area = wan.find(name)
    (area.set_one_way if one_way else area.set)(a, b, **fields)


@commands.command()
def show(
    node: Annotated[str | None, typer.Argument(help="Only the links of this node.")] = None,
    probes: Annotated[int, typer.Option(min=1, help="Echoes sent per pair; the median is shown.")] = 5,
    name: Name = DEFAULT_NAME,
    as_json: JsonOption = False,
) -> None:
    """The links as they are set, and the round trip measured now, in ms. Example: nearcast lab wan show tokyo"""
    area = wan.find(name)
    nodes = area.topology.nodes
    rows = {each: area.links(each) for each in nodes}
    one = None if node is None else area.topology.index(node)
    pairs = [(a, b) for i, a in enumerate(nodes) for j, b in enumerate(nodes) if i < j and one in (None, i, j)]
    longest = max(state.settings.delay_ms + state.settings.jitter_ms for row in rows.values() for state in row.values())
    measured = wan.round_trips(area, pairs, count=probes, patience=1.0 + 2 * longest / 1000)
    links = [_link(a, b, rows[a][b], rows[b][a], measured[a, b]) for a, b in pairs]
    if as_json:
        print_json(links)
        return
    screen = Screen("a", "b", box=None)
    for title in ("a to b", "b to a", "rtt", "measured", "jitter", "loss", "mbit", "sent", "lost"):
        screen.add_column(title, justify="right")
    for link in links:
        there, back, median = link["a_to_b_ms"], link["b_to_a_ms"], link["measured_rtt_ms"]
        screen.add_row(
            link["a"],
            link["b"],
            *(f"{delay:.1f}" for delay in (there, back, there + back)),
            f"{median:.1f}" if median is not None else "cut" if link["cut"] else "none",
            f"{link['jitter_ms']:.1f}",
            f"{link['loss']:.1%}",
            "" if link["mbit"] is None else f"{link['mbit']:g}",
            str(link["sent"]),
            str(link["lost"]),
        )
    open_console().print(screen)


def _link(a: str, b: str, there: LinkState, back: LinkState, times: Sequence[float]) -> dict[str, Any]:
    """Jitter, loss and bandwidth are those from a to b, packets those of both ways."""
    settings = there.settings
    return {
        "a": a,
        "b": b,
        "a_to_b_ms": settings.delay_ms,
        "b_to_a_ms": back.settings.delay_ms,
        "measured_rtt_ms": statistics.median(times) if times else None,
        "cut": settings.cut or back.settings.cut,
        "jitter_ms": settings.jitter_ms,
        "loss": settings.loss,
        "mbit": settings.mbit,
        "sent": there.sent + back.sent,
        "lost": there.lost + back.lost,
    }


@commands.command()
def down(name: Name = DEFAULT_NAME) -> None:
    """End what runs at the nodes, the emulator and the namespaces; clear what killed emulators left.

    Example: nearcast lab wan down
    """
    cleared = wan.clear_leftovers()
    if name in wan.running():
        wan.stop(name)
    elif name not in cleared:
        wan.find(name)


def quantity(option: str, text: str, units: Mapping[str, float]) -> float:
    """A number with one of the units."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z%]*)", text.strip().lower())
    if found is None or found[2] not in units:
        allowed = ", ".join(unit for unit in units if unit)
        raise InputError(f"{option} is {text!r}; a number and one of these units is allowed: {allowed}")
    return float(found[1]) * units[found[2]]
