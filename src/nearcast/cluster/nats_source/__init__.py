"""The Spark data source `nats`: JetStream streams as Spark tables, and rows published to NATS.

Spark's Python workers import these modules by name; driver and workers need the same version of Nearcast.
"""
