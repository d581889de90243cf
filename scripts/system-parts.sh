#!/usr/bin/env bash
# Installs test dependencies that are not available as wheels: a browser, for the tests of HTML pages.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium for the page tests (once)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
    exit 0
fi

echo "The page tests need a Chromium browser, and this script cannot install it." >&2
echo "Install one (Debian: sudo apt-get install chromium), then run make test again." >&2
exit 1
