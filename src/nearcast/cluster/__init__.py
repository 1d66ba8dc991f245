"""The data cluster: datasets and parameterised channels on Spark."""
