"""A wide area on one machine: a network namespace per node, one process that carries packets between them."""
