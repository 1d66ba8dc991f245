"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan.

`show` and `apply` are the plan of the leading coordinator, made by the same planners from what sites report.
"""

from nearcast.cli.lazy_group import LazyCommand, lazy_app

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "homes": LazyCommand("nearcast.cli.plan.homes", "homes", "Assign every client a home site."),
    "colocation": LazyCommand("nearcast.cli.plan.colocation", "colocation", "Assign topics to workers of a site."),
    "partition": LazyCommand("nearcast.cli.plan.partition", "partition", "Assign topics to sites."),
    "stores": LazyCommand("nearcast.cli.plan.stores", "stores", "Choose nodes for stores, and topics for stores."),
    "balance": LazyCommand("nearcast.cli.plan.balance", "balance", "Balance subscribers between sites."),
    "show": LazyCommand("nearcast.cli.plan.live", "show", "Show the leading coordinator's plan; change nothing."),
    "apply": LazyCommand("nearcast.cli.plan.live", "apply", "Make the leading coordinator's plan and execute it."),
    "history": LazyCommand("nearcast.cli.plan.live", "history", "List the last moves, when and why."),
}
app = lazy_app(COMMANDS)
