"""Interface for people: command line, configuration, cluster, exit codes, logging."""
