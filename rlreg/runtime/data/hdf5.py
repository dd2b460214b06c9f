"""Opens HDF5 files, and in them only what is there: nothing of other files, no more than fits.

A data set may come from a stranger. HDF5 lets a name stand for an array of another file, or for the
bytes of any file at all; reading it would put what is there into the data. And a file of some
kilobytes can declare terabytes.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import DatasetError, MissingExtraError, RlregError

_MOST_EXPANSION = 1100  # of bytes in a file: deflate's limit is 1,032


def import_h5py() -> Any:
    """Imports h5py, or says how to get it."""
    try:
        import h5py
    except ImportError as cause:
        raise MissingExtraError("HDF5 data need h5py: pip install 'rlreg[train]'") from cause
    return h5py


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Opens an HDF5 file for reading, for as long as the block lasts.

    Raises:
        DatasetError: It is missing or no HDF5 file, or HDF5 stumbles over what is in it.
    """
    h5py = import_h5py()
    try:
        file = h5py.File(path, "r")
    except OSError as cause:
        raise DatasetError(f"{path}: not a readable HDF5 file: {cause}") from cause
    try:
        with file:
            yield file
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        if isinstance(error, RlregError) or not _is_from_h5py(error):
            raise
        raise DatasetError(f"{path}: the HDF5 file is damaged: {error}") from error


def _is_from_h5py(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return "h5py" in Path(frames[-1].filename).parts


def names_in(group: Any) -> list[str]:
    """Names of what a group holds, links to nowhere included."""
    return [name.decode(errors="replace") for name in group.id]


class OwnArrays:
    """Reads from one file what is in it.

    Args:
        file: The open file.
    """

    def __init__(self, file: Any) -> None:
        from h5py import h5o

        # Asked once: in a file of short episodes such questions cost more than the numbers.
        self._file_number = h5o.get_info(file.id).fileno
        self._most_bytes = _MOST_EXPANSION * file.id.get_filesize()

    def child(self, group: Any, name: str) -> Any:
        """Returns a group or an array of a group.

        Raises:
            ValueError: If there is none of that name, or it leads nowhere or to another file.
        """
        try:
            node = group[name]
        except (KeyError, OSError, RuntimeError) as cause:  # a link to itself is a RuntimeError
            raise ValueError(f"{name} is missing, or a link to nothing") from cause
        self._require_same_file(node.id, name)
        return node

    def array(self, group: Any, name: str) -> Any:
        """Returns an array of a group, unread.

        Raises:
            ValueError: If there is none of that name in this file, or it is larger than the file
                can hold.
        """
        node = self.child(group, name)
        if not isinstance(node, import_h5py().Dataset):
            raise ValueError(f"{name} is no array")
        self._require_content_here(node.id, name)
        return node

    def read(self, group: Any, name: str) -> NDArray[Any]:
        """Reads a whole array, past h5py's own objects: in short episodes these cost the most.

        Raises:
            ValueError: See :meth:`array`.
        """
        from h5py import h5d, h5s

        try:
            node = h5d.open(group.id, name.encode())
        except (KeyError, ValueError, TypeError, RuntimeError) as cause:
            raise ValueError(f"no array {name!r} in {group.name}") from cause
        self._require_same_file(node, name)
        self._require_content_here(node, name)
        # Zeros: the library leaves alone what stands for chunks that were never written.
        values = np.zeros(node.shape, node.dtype)
        if values.size:
            node.read(h5s.ALL, h5s.ALL, values)
        return values

    def _require_same_file(self, node: Any, name: str) -> None:
        from h5py import h5o

        if h5o.get_info(node).fileno != self._file_number:
            raise ValueError(f"{name} is a link to another file, which is not read")

    def _require_content_here(self, node: Any, name: str) -> None:
        from h5py import h5d

        settings = node.get_create_plist()
        is_elsewhere = settings.get_external_count() > 0
        if settings.get_layout() == h5d.VIRTUAL:
            sources = range(settings.get_virtual_count())
            is_elsewhere = any(settings.get_virtual_filename(i) != "." for i in sources)
        if is_elsewhere:
            raise ValueError(f"{name} is kept in another file, which is not read")
        size = math.prod(node.shape) * node.dtype.itemsize
        if size > self._most_bytes:
            raise ValueError(f"{name} would be {size:,} bytes, more than this file can hold")
