"""A site: its broker, store, agent and workers, started, supervised and stopped."""
