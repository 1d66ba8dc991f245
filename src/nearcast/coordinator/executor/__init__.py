"""`topic_move`, `client_move`, `replica_move` decide (events in, instructions out), `executor` acts."""
