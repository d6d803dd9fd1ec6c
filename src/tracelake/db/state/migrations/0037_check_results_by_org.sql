-- The newest results of an org, page by page: what the relation `_check_results` of queries has.
CREATE INDEX check_results_by_org ON check_results (org_id, checked_at, task_id, attempt, output_index, name);

-- The state of a check is that of its results in one generation.
CREATE INDEX check_results_by_generation ON check_results (dataset_uuid, dataset_version, name, checked_at DESC);
DROP INDEX check_results_by_name;
