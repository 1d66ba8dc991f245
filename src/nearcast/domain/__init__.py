"""The nouns of Nearcast: sites, topics, clients, channels, plans. Frozen values, no I/O."""
