"""Where things should run: pure functions on arrays, one folder per paper. A seed decides all randomness."""
