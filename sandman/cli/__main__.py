"""`python -m sandman.cli`."""

from sandman.cli import main

if __name__ == "__main__":
    main(prog_name="sandman")
