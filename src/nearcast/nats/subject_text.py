"""Subjects as text: a broker does not check that they are UTF-8."""

from __future__ import annotations

import hashlib

__all__ = ["subject_text"]

_LONGEST = 3000  # of one that is no UTF-8; marks carry topics, and are limited


def subject_text(subject: bytes) -> str:
    r"""A subject as it came off the wire; what is no UTF-8 is written `\xff`.

    It is the same for a message that comes by itself and one that is read from a store, so that marks are found.
    """
    try:
        return subject.decode()
    except UnicodeDecodeError:
        found = subject.decode("utf-8", "backslashreplace")
        return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}~{hashlib.sha256(subject).hexdigest()[:40]}"
