"""docs/runbooks/query-pool.md and query-cache.md, on one stack with a Query Service."""

from tests.runbooks.page import follow
from tests.support.real_stack import SHORT_TIMES, RealStack
from tracelake.settings import Settings


def test_the_pages() -> None:
    stack = RealStack(settings={**SHORT_TIMES, "query_service": "true", "workers": "0"})
    kept = stack.home.query / "cache" / "0.parquet"
    with stack.running():
        stack.shell("trace query 'SELECT 1'")
        pool = follow(stack, "query-pool.md", words={"ENGINES": "3"})
        assert "ok" in pool.printed[0]
        kept.write_bytes(b"a copy")
        follow(stack, "query-cache.md", words={"BYTES": "1000000"})
        assert not kept.exists()
        assert (stack.home.query / "running").is_dir()
        settings = Settings.load({"home": stack.home.root}, environ={})
        assert (settings.query_engines, settings.query_cache_bytes) == (3, 1_000_000)
