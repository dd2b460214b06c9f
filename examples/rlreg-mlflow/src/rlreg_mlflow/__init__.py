"""MLflow as a logger of rlreg."""
