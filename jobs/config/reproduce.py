"""The configuration of reproduce."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from jobs.config.cluster import ClusterConfig
from jobs.config.jobs import _CLUSTER, _RECORD, _STORAGE, JobConfig, RecordConfig, Scratch, StorageConfig
from jobs.config.section import Section
from jobs.config.types import Text, as_tuple


class ExperimentDataConfig(Section):
    """The data sets of the experiments."""

    path: Text | None = Field(
        None,
        description="Folder of the data sets, one Parquet file each, which all workers must see; the sets that are "
        "not there are left out, and the report says which. null: the sets that logcal ships.",
    )


class ReproductionConfig(Section):
    """Where the results go."""

    path: Text = Field(
        description="Folder to write to: results/ has one file a data set, classifier and run, and what is there is "
        "not computed again; results.parquet, reproduction.md, reproduction.html and figures/ are made of them."
    )


class ReproduceSection(Section):
    """What to run."""

    quick: bool = Field(
        False,
        description="A run of some minutes on two cores: at most 2 runs, 3 folds, and data sets cut to 1,000 rows.",
    )
    experiments: (
        Annotated[
            tuple[Literal["simulated", "binning", "generated", "real", "sizes", "times"], ...],
            BeforeValidator(as_tuple),
            Field(min_length=1),
        ]
        | None
    ) = Field(
        None,
        description="The experiments to run, a list of: simulated (points of which the isotonic assumption fails), "
        "binning (SBB, ABB and ACP), generated (DG and DGG), real (cross-validation on all sets), sizes (from 100 to "
        "30,000 rows to calibrate with), times (of the calibrators alone). null: all.",
    )
    runs: int = Field(
        10, ge=1, le=1000, description="Runs of each experiment, each with other random numbers."
    )
    large_runs: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="At most so many runs of what takes long: sets with more than 2,000 rows, and the experiment on "
        "sizes. null: as many as of the others.",
    )
    folds: int = Field(10, ge=2, le=100, description="Folds of the cross-validation on real data.")
    max_rows: int | None = Field(
        None,
        ge=100,
        description="Larger data sets are cut to so many rows, at random, others in each run. null: none is.",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of all random numbers.")


class ReproduceConfig(JobConfig):
    """Configuration of reproduce."""

    data: ExperimentDataConfig = Field(ExperimentDataConfig(), description="The data sets.")
    output: ReproductionConfig = Field(description="Where the results go.")
    reproduce: ReproduceSection = Field(ReproduceSection(), description="What to run.")
    record: RecordConfig = _RECORD
    storage: StorageConfig = _STORAGE
    scratch: Scratch = None
    cluster: ClusterConfig = _CLUSTER
