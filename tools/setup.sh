#!/usr/bin/env bash
# Create .venv with exactly the dependencies of requirements.lock, and install Thermocline in it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '==> %s\n' "$*"; }
stop() { printf '%s\n  %s\n' "$1" "$2" >&2; exit 1; }

# Print the first Python that is new enough. PYTHON overrides.
find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Debian and Ubuntu have the venv module in a separate package.
make_venv() {
    "$1" -m venv --clear .venv >/dev/null 2>&1 && return
    local package
    package="python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        say "Installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" \
            >/dev/null
        "$1" -m venv --clear .venv
    else
        stop "Python's venv module is missing." "Install it: sudo apt-get install $package"
    fi
}

# Show a live line on a terminal, and every tenth package otherwise.
progress() {
    local total word name rest n=0
    total=$(grep -c '^[a-z0-9].*==' requirements.lock)
    while read -r word name rest; do
        case "$word $name" in
        "Collecting "*)
            n=$((n + 1))
            if [ -t 1 ]; then
                printf '\r\033[K    %d of %d  %s' "$n" "$total" "$name"
            elif [ $((n % 10)) = 0 ]; then
                printf '    %d of %d\n' "$n" "$total"
            fi
            ;;
        "Installing collected")
            [ -t 1 ] && printf '\r\033[K'
            echo "    unpacking"
            ;;
        esac
    done
}

if command -v uv >/dev/null; then
    if ! .venv/bin/python -c '' 2>/dev/null; then
        say "Creating .venv"
        uv venv --quiet --clear --python '>=3.11' .venv
    fi
    say "Installing the pinned dependencies"
    uv pip install --python .venv/bin/python --require-hashes --requirements requirements.lock
    uv pip install --python .venv/bin/python --quiet --no-deps --editable .
else
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        python=$(find_python) ||
            stop "Python 3.11 or newer was not found." \
                "Install it: sudo apt-get install python3 python3-venv, or set PYTHON to its path."
        say "Creating .venv with $("$python" --version)"
        make_venv "$python"
    fi
    say "Installing the pinned dependencies (half a gigabyte, most of it Spark)"
    # Spark is a source archive; older versions of pip would install it in a deprecated way.
    export PIP_USE_PEP517=1
    pip=(.venv/bin/python -m pip --disable-pip-version-check install)
    "${pip[@]}" --require-hashes --requirement requirements.lock | progress
    "${pip[@]}" --quiet --no-deps --editable .
fi
say "Ready: .venv/bin/thermo --help"
