"""``python -m rlreg`` is the command ``rlreg``."""

from rlreg.cli.main import main

if __name__ == "__main__":
    main()
