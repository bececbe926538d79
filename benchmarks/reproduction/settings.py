"""Effect of settings that the papers omit, to explain differences of the reproduction.

    python -m benchmarks.reproduction.settings DATA [CHECK ...]

DATA is the folder of the reproduction's data sets. Each check prints a table; docs/reproduction.md quotes them. Numbers
after ± are standard errors over the runs.
"""

import argparse
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, LinearSVC

from benchmarks.reproduction import data as sets
from benchmarks.reproduction.classifiers import Classifier, Preparation, Scores
from benchmarks.reproduction.generated import generate
from benchmarks.reproduction.methods import Calibration, calibrate, label_order_errors, measures_of
from benchmarks.reproduction.ranks import rank_methods, relative_gain
from calibrators.acp import ACP
from calibrators.isotonic.calibrator import Isotonic

FREQUENCY = ("auc", "accuracy", "rmse", "ece", "mce")
BY_LABEL = ("auc", "accuracy", "rmse", "mce_label", "ece_root")
"""Measures as in the papers of SBB and ABB: ties cut by label, the square root of a tenth of the ECE."""
WIDE = ("ad", "colon_cancer", "duke", "leu", "w1a", "scene", "protein_homology")
"""Sets left out of `ranks`: unpenalised logistic regression is slow with more columns than rows."""

Array = np.ndarray
Rows = dict[str, list[tuple[float, ...]]]


def show(title: str, columns: Iterable[str], rows: Rows) -> None:
    columns = list(columns)
    print(f"\n### {title}\n\n|  | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    for name, values in rows.items():
        array = np.array(values)
        cells = [f"{mean:.3f}" for mean in array.mean(axis=0)]
        if len(array) > 1:
            errors = array.std(axis=0, ddof=1) / len(array) ** 0.5
            cells = [f"{cell} ± {error:.3f}" for cell, error in zip(cells, errors, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def measured(probability: Array, label: Array, names: Iterable[str]) -> tuple[float, ...]:
    measures = measures_of(probability, label)
    measures["ece_root"] = (measures["ece_label"] / 10) ** 0.5
    return tuple(measures[name] for name in names)


def categories(data: sets.Data) -> Array:
    return data.codes.max(axis=0, initial=0) + 1


def parts(data: sets.Data, run: int, *sizes: int) -> Iterator[sets.Data]:
    order = np.random.default_rng(run).permutation(data.label.size)
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        yield data.take(order[end - size : end])


def ranks(folder: Path) -> None:
    """Print ENIR's and BBQ's ranks with penalised and with unpenalised logistic regression."""
    methods = ("base", "histogram", "platt", "isotonic", "bbq", "enir", "bbq_authors", "enir_authors")
    rows = []
    names = [name for name in sets.ENIR_SETS if name not in WIDE]
    for name in names:
        data = sets.load(name, folder, 0, 0, 1000)
        fold_of = sets.folds_of(data.label, 10, np.random.default_rng(0))
        for fold in range(0, int(fold_of.max()) + 1, 2):
            train, test = data.take(fold_of != fold), data.take(fold_of == fold)
            preparation = Preparation(train, categories(data))
            design, tested = preparation.design(train), preparation.design(test)
            for strength in (1.0, 1e6):
                model = LogisticRegression(C=strength, max_iter=300).fit(design, train.label)
                margins = model.decision_function(design), model.decision_function(tested)
                job = Calibration(*(Scores(expit(m), m) for m in margins[:1]), train.label,
                                  Scores(expit(margins[1]), margins[1]))  # fmt: skip
                for method in methods:
                    measures = measures_of(calibrate(method, job)[0], test.label)
                    rows.append({"set": name, "C": strength, "method": method, **measures})
    frame = pd.DataFrame(rows)
    print(
        f"\n### Average ranks, logistic regression, {len(names)} sets cut to 1,000 rows, five of ten folds\n"
    )
    print("|  | C | ranks | Friedman's p |\n|---|---|---|---|")
    for measure in ("accuracy", "rmse", "ece_label"):
        for compared in (("isotonic", "bbq", "enir"), ("isotonic", "bbq_authors", "enir_authors"),
                         ("base", "histogram", "platt", "isotonic", "bbq_authors")):  # fmt: skip
            for strength in (1.0, 1e6):
                values = frame[strength == frame.C].pivot_table(index="set", columns="method", values=measure)
                ranking = rank_methods(
                    compared, values[list(compared)], higher_is_better=measure == "accuracy"
                )
                marks = ranking.marks(compared[-1])
                text = ", ".join(f"{m} {ranking.mean[m]:.2f}{marks[m]}" for m in compared)
                print(f"| {measure} | {strength:g} | {text} | {ranking.friedman().p_value:.3f} |")
    gains(frame)


def gains(frame: pd.DataFrame) -> None:
    print("\n|  | C | relative gain of ENIR over the classifier, 95 % interval |\n|---|---|---|")
    for measure in ("auc", "accuracy", "rmse", "ece_label", "mce_label"):
        for strength in sorted(frame.C.unique()):
            chosen = frame[strength == frame.C]
            values = chosen.pivot_table(index="set", columns="method", values=measure)
            gain, _ = relative_gain(values.enir_authors, values.base)
            print(f"| {measure} | {strength:g} | [{gain.low:.3f}, {gain.high:.3f}] |")


def simulated(folder: Path) -> None:
    """Print the quadratic SVM of BBQ's Table 1 (b) by its penalty and the scale of the features."""
    data = sets.load("simulated_bbq", folder, 0, 0)
    train, test = data.take(~data.test), data.take(data.test)
    centre, spread = train.numeric.mean(axis=0), train.numeric.std(axis=0)
    for scaled in (True, False):
        features = [(part.numeric - centre) / spread if scaled else part.numeric for part in (train, test)]
        for strength in (0.001, 0.01, 0.1, 1.0):
            svm = SVC(C=strength, kernel="poly", degree=2, coef0=1.0, gamma=1.0).fit(features[0], train.label)
            margins = [svm.decision_function(x) for x in features]
            fitted, tested = (Scores(expit(margin), margin) for margin in margins)
            job = Calibration(fitted, train.label, tested)
            rows: Rows = {
                method: [measured(calibrate(method, job)[0], test.label, FREQUENCY)]
                for method in ("base", "histogram", "platt", "isotonic", "bbq")
            }
            scale = "standardised" if scaled else "as they are"
            show(f"SVM with a quadratic kernel, C = {strength:g}, features {scale}", FREQUENCY, rows)


def row_order_error(probability: Array, label: Array) -> float:
    """Return the ECE over ten groups that cut ties in the order of the rows."""
    order = np.argsort(probability, kind="stable")
    return float(
        sum(
            abs(label[rows].mean() - probability[rows].mean()) * rows.size / label.size
            for rows in np.array_split(order, 10)
        )
    )


def order(folder: Path) -> None:
    """Print the ECE with ties cut in the order of the labels, cut in the order of shuffled rows, and not cut."""
    data = sets.load("simulated_bbq", folder, 0, 0)
    train, test = data.take(~data.test), data.take(data.test)
    model = Classifier("svm_linear").fit(train, categories(data))
    job = Calibration(model.scores(train), train.label, model.scores(test))
    rows: Rows = {}
    for method in ("histogram", "isotonic", "bbq", "enir"):
        probability = calibrate(method, job)[0]
        shuffled = [
            row_order_error(probability[mixed], test.label[mixed])
            for mixed in (np.random.default_rng(seed).permutation(test.label.size) for seed in range(100))
        ]
        rows[method] = [
            (label_order_errors(probability, test.label)[0], float(np.mean(shuffled)),
             measures_of(probability, test.label)["ece"])
        ]  # fmt: skip
    show("ECE, linear SVM", ("ties by label", "rows shuffled, mean of 100", "ties shared"), rows)


def by_label(folder: Path) -> None:
    """Print MCE and ECE of the simulated sets in three ways; for XOR by the spread, and for diagonal classifiers."""
    ways = ("equal width", "ties by label", "ties shared")
    columns = (
        *(f"{kind}, {way}" for kind in ("MCE", "ECE") for way in ways),
        "√(ECE / 10), ties by label",
        "ACC",
    )
    names = (
        *(f"{kind}{way}" for kind in ("mce", "ece") for way in ("_width", "_label", "")),
        "ece_root",
        "accuracy",
    )
    printed = sets.XOR_SPREAD
    for name, spread in (("circular", printed), *(("xor", spread) for spread in (0.4, 0.45, 0.5, 0.55, 0.6))):
        rows: Rows = {}
        sets.XOR_SPREAD = spread
        for run in range(21):
            train, calibration, test = parts(sets.load(name, folder, 0, run), run, 600, 600, 600)
            model = Classifier("lr").fit(train, categories(train))
            angle = np.degrees(np.arctan2(*np.abs(model.model.coef_[0])))
            job = Calibration(model.scores(calibration), calibration.label, model.scores(test))
            for method in ("base", "isotonic", "platt", "histogram", "sbb", "abb"):
                values = measured(calibrate(method, job)[0], test.label, names)
                rows.setdefault(method, []).append(values)
                if name == "xor" and abs(angle - 45) < 15:
                    rows.setdefault(f"{method}, near the diagonal", []).append(values)
        show(f"{name}, standard deviation {spread}" if name == "xor" else name, columns, rows)
    sets.XOR_SPREAD = printed


def acp(folder: Path) -> None:
    """Print ACP by the width of the intervals, and for runs in which the regression is near the diagonal."""
    for name in ("xor", "circular"):
        rows: Rows = {}
        widths, directions = [], []
        for run in range(21):
            data = sets.load(name, folder, 0, run)
            train, calibration, test = parts(data, run, 600, 600, 600)
            model = Classifier("lr", intervals=True).fit(train, categories(data))
            fitted, tested = model.scores(calibration), model.scores(test)
            method = ACP().fit(fitted.probability, calibration.label)
            assert tested.lower is not None
            assert tested.upper is not None
            middle, low, high = tested.probability, tested.lower, tested.upper
            widths.append((float(np.mean(high - low)), float(np.ptp(fitted.probability))))
            for share in (1.0, 0.5, 0.25, 0.1, 0.05):
                adjusted = method.predict(
                    middle, middle + share * (low - middle), middle + share * (high - middle)
                )
                rows.setdefault(f"intervals x {share:g}", []).append(measured(adjusted, test.label, BY_LABEL))
            abb = calibrate("abb", Calibration(fitted, calibration.label, tested))[0]
            rows.setdefault("ABB", []).append(measured(abb, test.label, BY_LABEL))
            angle = np.degrees(np.arctan2(*np.abs(model.model.coef_[0][::-1])))
            near = abs(angle - 45) < 15
            directions.append((near, rows["intervals x 0.1"][-1], rows["ABB"][-1]))
        show(f"ACP, {name}", BY_LABEL, rows)
        print(f"\nmean width of the intervals, range of the scores: {np.mean(widths, axis=0).round(3)}")
        near = {
            "ACP, intervals x 0.1": [d[1] for d in directions if d[0]],
            "ABB": [d[2] for d in directions if d[0]],
        }
        show(
            f"{name}, runs where the direction is within 15 degrees of the diagonal: {len(near['ABB'])}",
            BY_LABEL,
            near,
        )


def adult(folder: Path) -> None:
    """Print logistic regression and linear SVM on subsets of the features, with coded categories and scaled margins."""
    rows: Rows = {}
    for run in range(21):
        data = sets.load("adult_complete", folder, 0, run)
        train, calibration, test = parts(data, run, 2000, 600, 600)
        for name, (fitted, held_out, tested) in adult_features(data, train, calibration, test).items():
            model = LogisticRegression(max_iter=1000).fit(fitted, train.label)
            margins = model.decision_function(held_out), model.decision_function(tested)
            scored = {f"LR, {name}": [expit(margin) for margin in margins]}
            if name.startswith("all"):
                model = LinearSVC(C=1.0, dual=False).fit(fitted, train.label)
                margins = model.decision_function(held_out), model.decision_function(tested)
                low, high = margins[0].min(), margins[0].max()
                scaled = [np.clip((margin - low) / (high - low), 0, 1) for margin in margins]
                scored[f"SVM, {name}"] = [expit(margin) for margin in margins]
                scored[f"SVM, {name}, margins scaled to [0, 1]"] = scaled
                scored[f"SVM, {name}, sigmoid of margins scaled to [0, 1]"] = [expit(m) for m in scaled]
                scored[f"SVM, {name}, sigmoid of margins lifted above 0"] = [expit(m - low) for m in margins]
                scored[f"SVM, {name}, sign turned"] = [expit(-m) for m in margins]
            for key, (scores, probability) in scored.items():
                job = Calibration(Scores(scores, scores), calibration.label, Scores(probability, probability))
                for method in ("base", "isotonic", "platt", "histogram", "sbb", "abb"):
                    calibrated = measured(calibrate(method, job)[0], test.label, BY_LABEL)
                    rows.setdefault(f"{key}: {method}", []).append(calibrated)
    show("Adult", BY_LABEL, rows)


def adult_features(data: sets.Data, *splits: sets.Data) -> dict[str, list[Array]]:
    preparation = Preparation(splits[0], categories(data))
    design = [preparation.design(part) for part in splits]
    numbers = data.numeric.shape[1]
    mean, spread = splits[0].codes.mean(axis=0), splits[0].codes.std(axis=0)
    coded = [(part.codes - mean) / spread for part in splits]
    return {
        "all": design,
        "numbers": [part[:, :numbers] for part in design],
        "age, capital loss, hours": [part[:, [0, 4, 5]] for part in design],
        "age, hours": [part[:, [0, 5]] for part in design],
        "categories": [part[:, numbers:] for part in design],
        "categories as whole numbers": coded,
        "all, categories as whole numbers": [
            np.hstack([part[:, :numbers], codes]) for part, codes in zip(design, coded, strict=True)
        ],
    }


def spect(folder: Path) -> None:
    """Print logistic regression and the quadratic SVM on SPECT by their penalties."""
    data = sets.load("spect", folder, 0, 0)
    train, test = data.take(~data.test), data.take(data.test)
    preparation = Preparation(train, categories(data))
    rows: Rows = {}
    for strength in (1.0, 10.0, 100.0, 1e4, 1e6):
        model = LogisticRegression(C=strength, max_iter=5000).fit(preparation.design(train), train.label)
        probability = model.predict_proba(preparation.design(test))[:, 1]
        rows[f"C = {strength:g}"] = [measured(probability, test.label, BY_LABEL)]
    show("SPECT, logistic regression", BY_LABEL, rows)
    rows = {}
    for strength in (0.001, 0.01, 0.1, 1.0):
        svm = SVC(C=strength, kernel="poly", degree=2, coef0=1.0, gamma=1.0)
        margins = [
            svm.fit(preparation.design(train), train.label).decision_function(preparation.design(part))
            for part in (train, test)
        ]
        fitted, tested = (Scores(expit(margin), margin) for margin in margins)
        right = float(np.mean((margins[0] >= 0) == train.label))
        for method in ("base", "sbb", "abb"):
            probability = calibrate(method, Calibration(fitted, train.label, tested))[0]
            rows[f"C = {strength:g}, {method}"] = [(right, *measured(probability, test.label, BY_LABEL))]
        turned = measured(expit(-margins[1]), test.label, BY_LABEL)
        rows[f"C = {strength:g}, sign turned"] = [(right, *turned)]
    show("SPECT, SVM with a quadratic kernel", ("accuracy on the training rows", *BY_LABEL), rows)


def generated(folder: Path) -> None:
    """Print both kinds of naive Bayes for DG's tables, and isotonic regression on one row per tie."""
    for name in sets.DG_SETS:
        rows: Rows = {}
        data = sets.load(name, folder, 0, 0)
        for run in range(10):
            test, train = parts(
                data, run, round(0.3 * data.label.size), data.label.size - round(0.3 * data.label.size)
            )
            probabilities = {}
            for kind in ("nb_plain", "nb"):
                model = Classifier(kind).fit(train, categories(data))
                probabilities[f"Raw, {kind}"] = model.scores(test).probability
            scores, label = generate(run, train, categories(data))
            model = Classifier("nb_plain").fit(train, categories(data))
            tested = model.scores(test).probability
            probabilities["DG"] = Isotonic(ends=0).fit(scores, label).predict(tested)
            first = np.unique(scores, return_index=True)[1]
            probabilities["DG, the first row of each tie"] = (
                Isotonic(ends=0).fit(scores[first], label[first]).predict(tested)
            )
            for key, probability in probabilities.items():
                measures = measures_of(probability, test.label)
                value = (2 * measures["log_loss"], 2 * measures["rmse"] ** 2, scores.size, first.size)
                rows.setdefault(key, []).append(value)
        show(name, ("log loss", "MSE", "rows generated", "distinct scores"), rows)


CHECKS: dict[str, Callable[[Path], None]] = {
    check.__name__: check for check in (ranks, simulated, order, by_label, acp, adult, spect, generated)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("check", nargs="*", help=f"{', '.join(CHECKS)}; all, unless some are named")
    options = parser.parse_args()
    if unknown := set(options.check) - set(CHECKS):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    for name in options.check or CHECKS:
        CHECKS[name](options.data)


if __name__ == "__main__":
    main()
