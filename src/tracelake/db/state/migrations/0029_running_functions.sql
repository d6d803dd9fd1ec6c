-- Functions of an org that may run at once. They are counted in `limits`, by org.
ALTER TABLE org_quotas ADD COLUMN running_functions bigint CHECK (running_functions BETWEEN 0 AND 1000000);
