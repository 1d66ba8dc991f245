"""Makes the dataset and the channel of a run, once, before the data cluster starts.

python -m nearcast.lab.chaos.catalog CONFIGURATION
"""

from __future__ import annotations

import sys
from pathlib import Path

from nearcast.cluster.admin import Admin
from nearcast.cluster.spark_session import spark_session
from nearcast.config.deployment_file import read_configuration
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.lab.chaos.deployment import CHANNEL, DATASET

__all__: list[str] = []

_SCHEMA = "publisher STRING NOT NULL, n INT NOT NULL, kind STRING"
_QUERY = f"SELECT r.publisher, r.n, r.kind FROM {DATASET} r WHERE r.kind = :kind"


def main() -> None:
    """Add both to the catalog in the cloud's store."""
    spark = spark_session("nearcast chaos", master="local[1]")
    try:
        admin = Admin(read_configuration(Path(sys.argv[1])))
        admin.add_dataset(DatasetSpec(DATASET, _SCHEMA, f"fed.{DATASET}"), spark)
        admin.add_channel(ChannelSpec(CHANNEL, _QUERY, (Parameter("kind", "string"),), new=DATASET), spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
