"""Classifiers and their features: labelled data as frames, estimators by name, fitted models in folders."""
