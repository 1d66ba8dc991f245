"""What the planners need from Spark: tables of the measured workload, and planner steps that run in parallel tasks."""
