import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "logcal_day",
    schedule="30 5 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,  # a run does all days that are left
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=10)},
):
    days = BashOperator(
        task_id="days", bash_command="logcal days run --config /opt/logcal/day.yaml", skip_on_exit_code=99
    )
