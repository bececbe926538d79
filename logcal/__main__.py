"""`python -m logcal` runs the command `logcal`."""

from logcal.command import run

if __name__ == "__main__":
    run()
