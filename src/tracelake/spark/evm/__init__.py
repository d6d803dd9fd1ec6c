"""EVM chains over JSON-RPC: asking nodes (`node_pool`, `node`), what they refuse with (`refusals`), judging what they
say (`answer_checks`), rows of it (`tables`)."""
