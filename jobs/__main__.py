"""`python -m jobs` is `logcal`."""

from jobs.cli import main

if __name__ == "__main__":
    main(prog_name="logcal")
