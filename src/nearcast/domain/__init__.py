"""Sites, topics, channels, datasets and deployments: frozen values, no I/O."""
