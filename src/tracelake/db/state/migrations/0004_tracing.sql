-- The trace that an event belongs to, as a W3C `traceparent`: of an event its own span, of a task the span of the event
-- that made it. NULL while tracing is off, and for what was not sampled.
ALTER TABLE events ADD COLUMN traceparent text;
ALTER TABLE tasks ADD COLUMN traceparent text;
