#!/usr/bin/env bash
# Installs what is not available as wheels: a browser, for the tests of HTML pages; with "fonts", a Chinese font for pictures.
set -euo pipefail

packages=()
command -v chromium chromium-browser google-chrome >/dev/null || packages+=(chromium)
if [ "${1:-}" = fonts ] && [ -z "$(fc-list :lang=zh 2>/dev/null)" ]; then
    packages+=(fontconfig fonts-wqy-microhei)
fi
[ ${#packages[@]} = 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${packages[*]} (once)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    exit 0
fi

echo "This needs ${packages[*]}, and this script cannot install it." >&2
echo "Install it (Debian: sudo apt-get install ${packages[*]}), then run make again." >&2
exit 1
