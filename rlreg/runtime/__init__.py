"""The half of rlreg that computes: the only core folder that imports torch, numpy, gymnasium.

Nothing in ``rlreg`` imports this package at module level; the bodies of ``create()``, CLI commands
and checks do, so that listing, validating and documenting need no torch.
"""
