"""The Spark session: what it needs and what it is set to. Nothing here starts a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearcast.cluster.spark_session import local_cores, require_java, spark_session
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from pathlib import Path


def _fake_java(folder: Path, version: str) -> None:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)


def test_without_java_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        NearcastError, match=r"there is no java on the path; install a Java runtime, 17 or later"
    ) as caught:
        spark_session("test")
    assert "\n" not in str(caught.value)


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NearcastError, match="which has no bin/java; install a Java runtime, 17 or later"):
        require_java()


@pytest.mark.parametrize(
    ("version", "good"), [("1.8.0_402", False), ("11.0.2", False), ("17.0.15", True), ("21", True)]
)
def test_java_must_be_17_or_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, good: bool) -> None:
    _fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if good:
        require_java()
    else:
        with pytest.raises(NearcastError, match=r"is Java \d+; Spark needs 17 or later"):
            require_java()


def test_cores_of_a_local_master() -> None:
    assert local_cores("local") == 1
    assert local_cores("local[3]") == 3
    assert local_cores("local[3,2]") == 3
    assert (local_cores("local[*]") or 0) >= 1
    assert local_cores("spark://somewhere:7077") is None
