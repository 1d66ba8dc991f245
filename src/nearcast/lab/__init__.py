"""A wide area on one machine, workloads, and the papers' experiments."""
