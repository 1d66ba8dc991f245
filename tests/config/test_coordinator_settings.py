"""The coordinator's settings file: an error names the file, the key, its value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast import InputError
from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.config.validation import read_toml


def test_a_file_changes_some_settings(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('period = 1\nhomes = "reloc"\n')
    assert read_toml(path, CoordinatorSettings) == CoordinatorSettings(period=1.0, homes="reloc")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("periode = 1", "periode is 1, an unknown key; allowed: period, lease, "),
        ("period = 0", "period is 0; allowed: above 0"),
        ("period = true", "period is True; expected `float`, got `bool`"),
        ("watermark = 85", "watermark is 85; allowed: above 0 to 1"),
        ("moves_at_once = 0", "moves_at_once is 0; allowed: 1 or more"),
        ('homes = "far"', "homes is 'far'; allowed: nearest, random, reloc, round_robin"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_toml(path, CoordinatorSettings)
    assert str(caught.value).startswith(f"{path}: {complaint}")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path, CoordinatorSettings)
