"""A published table as an MLflow model, logged as code without pickles."""

import mlflow.pyfunc

import logcal


class Calibrated(mlflow.pyfunc.PythonModel):
    """Model from a data frame's column `score` to probabilities; other columns are segment columns of the table."""

    def load_context(self, context):
        self.table = logcal.load(context.artifacts["store"], context.model_config["table"])

    def predict(self, context, model_input, params=None):
        segments = model_input.drop(columns="score") if self.table.segments else None
        return self.table.predict(model_input["score"].to_numpy(), segments)


mlflow.models.set_model(Calibrated())
