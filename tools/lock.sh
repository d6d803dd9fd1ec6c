#!/bin/sh
# Re-resolves requirements/*.txt for every supported Python and platform, with hashes.
# uv is used for resolving only; installing is done by pip.
set -eu
export UV_NATIVE_TLS=1 UV_PYTHON_DOWNLOADS=never
uv=${UV:-uv}
compile() {
    "$uv" pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --upgrade --quiet \
        --custom-compile-command "make lock" "$@"
}
compile pyproject.toml --output-file requirements/runtime.txt
compile pyproject.toml --extra dev --constraint requirements/runtime.txt --output-file requirements/dev.txt
compile requirements/bench.in --constraint requirements/dev.txt --output-file requirements/bench.txt
compile requirements/node.in --constraint requirements/dev.txt --output-file requirements/node.txt
compile requirements/build.in --output-file requirements/build.txt
compile requirements/peers.in --output-file requirements/peers.txt
