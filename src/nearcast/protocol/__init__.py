"""The structs that travel between processes, and nothing else."""
