"""EVM chains over JSON-RPC: asking nodes (`rpc`), judging what they say (`check`), rows of it (`tables`)."""
