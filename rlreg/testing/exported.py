"""Runs an exported policy as whoever deploys it would: without the learnable that it came from.

In a test of a plugin::

    from rlreg.testing import run_exported

    learnable.export(tmp_path / "policy.onnx")
    found = run_exported(tmp_path / "policy.onnx", {"observation": observations})
    np.testing.assert_allclose(found["action"], learnable.predict(observations), atol=1e-5)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run_exported(
    path: str | os.PathLike[str], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Runs a file that ``export`` wrote, ``.onnx`` by onnxruntime and ``.pt2`` by torch.

    Args:
        path: The file; its suffix says which of the two it is.
        inputs: One array ``[B, ...]`` for each input by name, in the order in which ``export``
            listed them.

    Returns:
        The outputs by name.

    Raises:
        ValueError: If the suffix is another one.
    """
    suffix = Path(path).suffix
    if suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    if suffix == ".pt2":
        import torch

        module = torch.export.load(path).module()
        found = module(*(torch.from_numpy(value) for value in inputs.values()))
        return {name: value.numpy() for name, value in found.items()}
    raise ValueError(f"{path}: expected a policy in a file ending in .onnx or .pt2")
