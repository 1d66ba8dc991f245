"""The data cluster: Spark reads what is published, keeps it as datasets and answers channels for all subscriptions."""
