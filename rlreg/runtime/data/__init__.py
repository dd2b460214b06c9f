"""Offline data: transition store, readers for Minari and D4RL files, generators, inspection."""

from __future__ import annotations

from rlreg.runtime.data.dataset import TransitionDataset
from rlreg.runtime.data.load import load_dataset

__all__ = ["TransitionDataset", "load_dataset"]
