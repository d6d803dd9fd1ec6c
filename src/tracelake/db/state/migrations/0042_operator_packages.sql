-- The package and version of an operator that an installed package provides, as the worker reported it. Operators of
-- Trace itself have none.
ALTER TABLE spark_metrics ADD COLUMN operator_package text;
