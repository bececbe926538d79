"""Version of this software: pyproject.toml, the command and manifests take it from here."""

__version__ = "0.1.0"
