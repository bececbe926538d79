"""What a person runs: command line, configuration, cluster, exit codes, logging."""
