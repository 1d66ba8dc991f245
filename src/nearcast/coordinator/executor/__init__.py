"""`topic_move`, `client_move`, `replica_move` decide what is done next, `executor` does it."""
