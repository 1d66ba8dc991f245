"""The `nats` source outside of Nearcast: the plain PySpark script in examples/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.conftest import Store

pytestmark = pytest.mark.xdist_group("spark")


def test_the_example_prints_what_it_promises(store: Store) -> None:
    script = Path(__file__).parents[2] / "examples" / "spark_nats.py"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(script), store.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = re.findall(r"^(?:readings|alarms).*", done.stdout, re.MULTILINE)
    high = sum(1 for n in range(1000) if n % 97 > 90 and n % 100 != 99)
    assert lines == [
        "readings: 990 broken: 10",
        f"alarms after the first run: {high}",
        f"alarms after the second run: {high}",
    ]
