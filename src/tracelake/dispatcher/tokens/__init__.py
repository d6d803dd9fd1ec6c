"""Tokens: the capability tokens of attempts, and the keys of users' tokens.

`mint` derives the grants of one attempt from its task and job, and renews them; `verify` checks a token once and then
recognises it by its text; `token_claims` are the verified claims. `jws` signs and checks, `jwks` reads the keys of
another issuer. Who presents which token is decided in `http.credentials`.
"""
