-- Other DAGs that may write a buffered dataset, as the active version of the DAG that owns it lists them.
ALTER TABLE datasets ADD COLUMN writers text[] NOT NULL DEFAULT '{}';
