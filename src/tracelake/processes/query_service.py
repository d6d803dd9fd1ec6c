"""`trace query-service`: the composition root of one Query Service process.

It needs the internal listener of a Dispatcher, the object store, and Postgres data by a role that reads. It has no
credential for the state database and no signing key. A machine that cannot isolate queries has no Query Service: the
process ends, and says what is missing.
"""

import logging

from tracelake.query.assembly import QueryServiceConfig
from tracelake.query.execution import EngineResources
from tracelake.query.service import QueryLimits
from tracelake.query.slots import SlotLimits
from tracelake.settings import Settings
from tracelake.settings.configs import ISSUER, take_config, user_token_rules

logger = logging.getLogger(__name__)


def query_config(settings: Settings) -> QueryServiceConfig:
    return take_config(
        QueryServiceConfig,
        settings,
        limits=take_config(QueryLimits, settings, "query_"),
        slots=take_config(SlotLimits, settings, "query_"),
        resources=take_config(EngineResources, settings, "query_"),
        cache_bytes=settings.query_cache_bytes,
        download_seconds=settings.query_download_seconds,
        issuer=ISSUER,
        user_tokens=user_token_rules(settings),
        jwks_cache_seconds=int(settings.jwks_cache_seconds),
    )
