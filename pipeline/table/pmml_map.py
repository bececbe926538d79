"""A lookup table as PMML, for programs that run models."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np

from calibrators.core.arrays import Array
from calibrators.core.map import CalibrationMap
from calibrators.core.simplify import knots_of
from calibrators.core.tabulate import needed_knots
from logcal.lookup_table import LookupTable
from logcal.version import __version__

_MOST, _MOST_RELATIVE, _LEAST = 1e-13, 1e-10, 1e-300
"""Largest change of a probability by knots that are left out: those of rows that meet, up to rounding."""


def pmml_map(table: LookupTable, name: str) -> str:
    """Return a table as PMML 4.4: a regression model with the input `score` and the output `probability`.

    Parameters
    ----------
    table : the lookup table
    name : the table's name

    Notes
    -----
    The map is a `NormContinuous`: linear between knots, constant outside. A jump has two knots, neighbouring doubles.
    A reader interpolates otherwise than the table, in the last digits. A missing score has no probability.
    """
    pmml = ET.Element("PMML", xmlns="http://www.dmg.org/PMML-4_4", version="4.4")
    header = ET.SubElement(pmml, "Header", description=f"Calibration of {name}, {table.facts.version}")
    ET.SubElement(header, "Application", name="logcal", version=__version__)
    dictionary = ET.SubElement(pmml, "DataDictionary", numberOfFields="1")
    _double(dictionary, "DataField", "score")
    derived = ET.SubElement(pmml, "TransformationDictionary")
    field = "score"
    if table.facts.score_transform == "sigmoid":
        field = "transformed_score"
        _sigmoid(_double(derived, "DerivedField", field))
    calibrated = _double(derived, "DerivedField", "calibrated_score")
    norm = ET.SubElement(calibrated, "NormContinuous", field=field, outliers="asExtremeValues")
    for orig, level in zip(*(column.tolist() for column in _knots(table.map)), strict=True):
        ET.SubElement(norm, "LinearNorm", orig=repr(orig), norm=repr(level))
    facts = {"modelName": f"{name} {table.facts.version}", "functionName": "regression"}
    model = ET.SubElement(pmml, "RegressionModel", facts)
    ET.SubElement(ET.SubElement(model, "MiningSchema"), "MiningField", name="score")
    outputs = ET.SubElement(model, "Output")
    _double(outputs, "OutputField", "probability").set("feature", "predictedValue")
    regression = ET.SubElement(model, "RegressionTable", intercept="0")
    ET.SubElement(regression, "NumericPredictor", name="calibrated_score", coefficient="1")
    ET.indent(pmml, space=" ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(pmml, encoding="unicode")}'


def _double(parent: ET.Element, tag: str, name: str) -> ET.Element:
    return ET.SubElement(parent, tag, name=name, optype="continuous", dataType="double")


def _knots(map_: CalibrationMap) -> tuple[Array, Array]:
    scores, levels = knots_of(map_)
    if scores.size == 0:
        return np.array([0.0, 1.0]), np.repeat(map_.prob_lo, 2)
    allowed = np.minimum(_MOST, _MOST_RELATIVE * np.minimum(levels, 1 - levels))
    needed = needed_knots(scores, levels, np.maximum(allowed, _LEAST))
    return scores[needed], levels[needed]


def _sigmoid(field: ET.Element) -> None:
    """Add 1 / (1 + exp(-score)); a missing score stays missing, though exp takes none."""

    def apply(parent: ET.Element, function: str, *constants: str) -> ET.Element:
        node = ET.SubElement(parent, "Apply", function=function)
        for constant in constants:
            ET.SubElement(node, "Constant", dataType="double").text = constant
        return node

    given = apply(field, "if")
    ET.SubElement(apply(given, "isNotMissing"), "FieldRef", field="score")
    exp = apply(apply(apply(given, "/", "1"), "+", "1"), "exp")
    ET.SubElement(apply(exp, "*", "-1"), "FieldRef", field="score")
