"""`python -m jobs` is `logcal`."""

from jobs.cli import run

if __name__ == "__main__":
    run()
