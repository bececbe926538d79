"""Imports of workers that train classifiers, once for all of them, while the command prepares its job.

Each of them would take seconds for it otherwise, and for a logistic regression a twentieth of one.
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
