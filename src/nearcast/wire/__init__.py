"""Subjects, headers and codecs: the only place that knows what travels on the wire."""
