"""Verifying tokens: the capability tokens of attempts, and users' tokens.

`verify` checks a capability token once and then recognises it by its text; `token_claims` are the verified claims.
`users` checks a user's token. `jws` signs and checks, `jwks` reads the keys of another issuer. The Dispatcher mints
capability tokens (`dispatcher.mint`).
"""
