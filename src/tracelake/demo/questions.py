"""What a person would ask about the demo's datasets, asked as `trace query` asks it.

The first question reads files alone. The second joins files with a table of Postgres and has 256-bit numbers.
"""

import asyncio
from dataclasses import dataclass

from tracelake.client.query import QueryClient
from tracelake.client.stack import LocalStack
from tracelake.wire.query import QueryReply, QueryRequest


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    sql: str


QUESTIONS = (
    Question(
        "Who moved tokens most often?",
        """\
SELECT from_address AS sender, count(*) AS transfers, count(DISTINCT token) AS tokens, max(block_number) AS last_block
FROM transfers
GROUP BY sender
ORDER BY transfers DESC, sender
LIMIT 5""",
    ),
    Question(
        "What is the largest transfer of each token, and how often was that token moved?",
        """\
SELECT '0x' || lower(hex(l.token))[:8] AS token, l.block_number, l.amount, f.transfers
FROM large_transfers l
JOIN (SELECT token, sum(transfers) AS transfers FROM hourly_flows GROUP BY token) f ON f.token = lower(hex(l.token))
QUALIFY row_number() OVER (PARTITION BY l.token ORDER BY l.amount DESC, l.block_number, l.log_index) = 1
ORDER BY f.transfers DESC, l.token""",
    ),
)


@dataclass(frozen=True, slots=True)
class QuestionReply:
    question: Question
    reply: QueryReply


async def ask(stack: LocalStack) -> list[QuestionReply]:
    """The answers, in order; none on a machine that cannot isolate queries, whose stack has no Query Service."""
    if stack.query_url is None:
        return []
    client = QueryClient(stack)
    try:
        replies = await asyncio.gather(*(client.run(QueryRequest(sql=question.sql)) for question in QUESTIONS))
    finally:
        await client.close()
    return [QuestionReply(question, reply) for question, reply in zip(QUESTIONS, replies, strict=True)]
