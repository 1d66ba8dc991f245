"""A site: its broker, store and workers, started, watched and stopped."""
