"""What the data cluster keeps: records are validated against a schema and stored as Parquet files."""
