"""The command ``rlreg``: one module per group of commands, imported when one of them is called."""
