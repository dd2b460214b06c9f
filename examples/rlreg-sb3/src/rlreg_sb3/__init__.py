"""PPO and SAC of Stable-Baselines3 as learnables of rlreg."""
