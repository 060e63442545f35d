"""`python -m tsd` is the command `tsd`."""

from tsd.cli import main

if __name__ == "__main__":
    main()
