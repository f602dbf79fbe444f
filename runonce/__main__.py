"""`python -m runonce`: the command line."""

from runonce.cli import main

if __name__ == "__main__":
    main()
