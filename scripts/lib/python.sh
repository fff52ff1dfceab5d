# Sourced by the scripts: sets $root (this checkout) and $python (a Python that adw can run on).
# A script that is not in scripts/ itself says in $up where the checkout is from there.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/${up:-..}" && pwd -P)
python=
for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "adw needs Python 3.11 or newer and found none as python3: install it, then run this again." >&2
    exit 1
fi
unset PYTHONHOME PYTHONPATH
