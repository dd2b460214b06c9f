"""The impala plugin of rlreg; `plugin` has the hooks, nothing is imported here."""
