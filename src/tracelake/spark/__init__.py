"""The data plane: operators on Spark, and how datasets are read and written there.

Nothing outside this package, the worker and the sink imports pyspark.
"""
