"""The data cluster: Spark keeps publications as datasets and evaluates channels for all subscriptions."""
