# noqa: A005 - a package of tests, never imported by this name alone
