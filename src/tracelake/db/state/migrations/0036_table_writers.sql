-- Whose rows a table shows. `rebuild`: those of the nodes that write it in active versions. `keep`: those of earlier nodes as
-- well, as for tables that were made before there was a choice. Cutovers set both.
ALTER TABLE buffered_tables
    ADD COLUMN on_change text NOT NULL DEFAULT 'keep' CHECK (on_change IN ('rebuild', 'keep')),
    ADD COLUMN writers   uuid[] NOT NULL DEFAULT '{}',
    -- Nodes whose version is gone: nobody can bring their rows back.
    ADD COLUMN retired   uuid[] NOT NULL DEFAULT '{}';

UPDATE buffered_tables t SET writers = w.nodes
FROM (SELECT o.dataset_uuid, array_agg(DISTINCT j.node_id) AS nodes
      FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version
      JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
      WHERE j.node_id IS NOT NULL GROUP BY 1) w
WHERE w.dataset_uuid = t.dataset_uuid;
