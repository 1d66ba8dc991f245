"""Moves, made one step at a time: `topic_move` and `client_move` decide (events in, instructions out), `shell` does."""
