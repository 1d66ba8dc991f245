"""Writes the pages of docs/reference from the code, and helps MkDocs to build the site."""
