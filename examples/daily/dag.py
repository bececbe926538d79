import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "logcal_day",
    schedule="30 5 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,  # days in their order, one at a time
    default_args={"retries": 2, "retry_delay": pendulum.duration(minutes=10)},
) as dag:
    evaluate, monitor, fit, score = (
        BashOperator(
            task_id=job,
            bash_command=f"logcal {job} --config /opt/logcal/day.yaml",
            skip_on_exit_code=99,
            trigger_rule="all_done",
        )
        for job in ("evaluate", "monitor", "fit", "score")
    )
    evaluate >> monitor >> fit >> score
