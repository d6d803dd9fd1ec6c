"""OpenTelemetry traces: one trace for an event and everything it sets off. Off unless `otlp_endpoint` is set.

`context` holds ids as pure values, `span` is a span before it is sent, `engine.spans` says which follow from a
transaction, `exporter` sends them. Only the last one imports OpenTelemetry, and it is itself imported only where
tracing is on.
"""
