--- approx_count_distinct | known
SELECT approx_count_distinct(sender) BETWEEN 3 AND 5 FROM transfers

--- approx_quantile | known
SELECT approx_quantile(gas_used, 0.5) BETWEEN 4000 AND 7000 FROM blocks

--- approx_quantile of a list | known
SELECT len(approx_quantile(gas_used, [0.1, 0.9])) FROM blocks

--- approx_top_k | known
SELECT list_sort(approx_top_k(kind, 1)) FROM transfers

--- quantile_cont | known
SELECT quantile_cont(gas_used, 0.25) FROM blocks

--- quantile_cont of a list | known
SELECT quantile_cont(gas_used, [0.0, 0.5, 1.0]) FROM blocks

--- percentile within group | known
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY gas_used) FROM blocks

--- quantile_disc | known
SELECT quantile_disc(gas_used, 0.5) FROM blocks

--- mad and skewness | known
SELECT mad(gas_used), round(skewness(gas_used), 6) FROM blocks
