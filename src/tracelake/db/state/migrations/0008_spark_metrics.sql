-- What Spark did for an attempt: stages, bytes, spill. Only what a worker said with its final word; most have none.
CREATE TABLE spark_metrics (
    task_id uuid NOT NULL REFERENCES tasks,
    attempt integer NOT NULL,
    figures json NOT NULL,
    PRIMARY KEY (task_id, attempt)
);
