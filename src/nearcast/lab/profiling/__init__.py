"""Measuring what one worker and one broker of this machine can take, with real ones."""
