"""Speed of the planners: one run, ratios against baselines, growth by doubling.

.venv/bin/python -m benchmarks.placement [homes|colocation|partitioning|storage|balance|coordinates …]
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.measure import print_table

# Each part is a module benchmarks/placement_<part>.py with a generator `figures()`.
PARTS: tuple[str, ...] = ("homes", "colocation", "partitioning", "storage", "balance", "coordinates")


def main(wanted: list[str]) -> None:
    """Run the parts named on the command line, or all of them."""
    for part in wanted or PARTS:
        print_table(part, importlib.import_module(f"benchmarks.placement_{part}").figures())


if __name__ == "__main__":
    main(sys.argv[1:])
