"""The console and REST: what the command line does, in a browser and over HTTP."""
