"""Weights & Biases as a logger of rlreg."""
