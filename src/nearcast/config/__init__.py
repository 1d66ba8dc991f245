"""What users write: `nearcast.toml` and the coordinator's settings, validated where they enter."""
