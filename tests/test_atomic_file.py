"""Files are replaced whole, or stay as they were; and where the list of blocked plugins lies."""

from __future__ import annotations

import sys
from pathlib import Path

import platformdirs
import pytest

from rlreg.atomic_file import replacing, write_text
from rlreg.blocking import block_file

pytestmark = pytest.mark.light


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_as_it_is(tmp_path):
    write_text(tmp_path / "a.txt", "ä\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == "ä\r\nb\n".encode()
    write_text(tmp_path / "a.txt", "")
    assert (tmp_path / "a.txt").read_bytes() == b""
    assert names(tmp_path) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted():
        with replacing(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_until_the_end_the_old_file_is_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_what_cannot_be_written_is_an_os_error_without_traces(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "gone" / "a.txt", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "folder", "x")
    assert names(tmp_path) == ["folder"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere platformdirs is asked")
@pytest.mark.parametrize(
    "home", ["/some/where", "", "  ", None], ids=["set", "empty", "blank", "unset"]
)
def test_the_block_file_lies_where_platformdirs_says(home, monkeypatch):
    if home is None:
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", home)
    assert block_file() == platformdirs.user_config_path("rlreg") / "blocked-plugins.json"
