"""OpenTelemetry traces: one trace for an event and everything it sets off. Off unless `otlp_endpoint` is set.

`context` holds ids and spans as pure values, `engine.spans` says which spans follow from a transaction, `exporter`
sends them. Only the last one imports OpenTelemetry, and it is itself imported only where tracing is on.
"""
