"""Moves, made one step at a time: `topic_move` and `client_move` decide (events in, instructions out), `shell` does.

`replica_move` changes the stores of a topic: a straight line with nothing to roll back but its first step.
"""
