"""Behaviour cloning for rlreg."""
