"""Imports of workers that train classifiers, in the fork server, while the command prepares its job.

Otherwise every worker would spend seconds on them; training a logistic regression takes a twentieth of a second.
"""

from jobs.interrupts import while_command_lives

with while_command_lives():
    import pandas as pd  # noqa: F401
    import sklearn.compose
    import sklearn.impute
    import sklearn.pipeline
    import sklearn.preprocessing  # noqa: F401
    import skops.io  # noqa: F401

    import pipeline.generate.generated_log  # noqa: F401
