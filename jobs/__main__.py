"""`python -m jobs` is `logcal`."""

from logcal.command import run

if __name__ == "__main__":
    run()
