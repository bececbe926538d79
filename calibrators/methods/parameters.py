"""Parameters as scikit-learn's estimators have them, without importing scikit-learn.

Its base class imports most of scipy and pandas, which takes a process most of a second: as long as fitting some
millions of scores. scikit-learn asks its estimators for methods, not for a base class.
"""

from __future__ import annotations

import inspect
from typing import Any, Self


class Parameters:
    """An object whose parameters are the keywords of its `__init__`, stored as they were given.

    `sklearn.base.clone`, `set_params` of what contains it, and searches over parameters treat it as an estimator.
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        if cls.__init__ is object.__init__:
            return {}
        signature = inspect.signature(cls.__init__)
        return {name: p.default for name, p in signature.parameters.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        deep : also those of parameters that have parameters themselves, as name__their_name
        """
        found: dict[str, Any] = {}
        for name in sorted(self._defaults()):
            value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": own for inner, own in value.get_params().items()}
            found[name] = value
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also name__their_name.

        Raises
        ------
        ValueError
            For a name that is no parameter; nothing is set then.
        """
        names = sorted(self._defaults())
        wrong = sorted({name.partition("__")[0] for name in params} - set(names))
        if wrong:
            raise ValueError(
                f"expected parameters of {type(self).__name__}, {', '.join(names) or 'which has none'}, found "
                f"{', '.join(wrong)}"
            )
        inner: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            own, nested, rest = name.partition("__")
            if nested:
                inner.setdefault(own, {})[rest] = value
            else:
                setattr(self, own, value)
        for own, values in inner.items():
            getattr(self, own).set_params(**values)
        return self

    def __repr__(self) -> str:
        shown = []
        for name, default in self._defaults().items():
            value = getattr(self, name)
            # Parameters may be arrays or estimators, which `==` does not settle.
            if value is not default and repr(value) != repr(default):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def __sklearn_tags__(self) -> Any:
        """What `sklearn.utils.get_tags` says of it."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            input_tags=InputTags(one_d_array=True, two_d_array=False),
        )
