"""The command line: nouns, then verbs. Commands validate what enters and call the library below."""

from nearcast.cli.app import main

__all__ = ["main"]
