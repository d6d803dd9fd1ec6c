"""Options of the Java that tests start."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""For programs that live for minutes: most of their CPU time would go into optimising themselves."""
