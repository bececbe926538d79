"""A published table as an MLflow model: its code is logged as text, and nothing is pickled."""

import mlflow.pyfunc

import logcal


class Calibrated(mlflow.pyfunc.PythonModel):
    """Probabilities of a data frame's column `score`; the other columns are the segments, if the table has them."""

    def load_context(self, context):
        self.table = logcal.load(context.artifacts["store"], context.model_config["table"])

    def predict(self, context, model_input, params=None):
        segments = model_input.drop(columns="score") if self.table.segments else None
        return self.table.predict(model_input["score"].to_numpy(), segments)


mlflow.models.set_model(Calibrated())
