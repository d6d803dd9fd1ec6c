"""EVM chains over JSON-RPC: asking nodes (`rpc`, `node`), what they refuse with (`refusals`), judging what they say
(`check`), rows of it (`tables`)."""
