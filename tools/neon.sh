#!/usr/bin/env bash
# Owns the aarch64 build and its tests on an x86-64 Debian machine: Debian's arm64 Python in a folder, run by qemu-user, the cross compiler
# as the host's own. Changes nothing on the host and needs no root; must not contain a test. Options go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/neon
sys=$root/sysroot

for tool in qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu apt-get:apt dpkg-deb:dpkg; do
    command -v "${tool%%:*}" >/dev/null || { echo "neon: ${tool%%:*} is missing; on Debian: apt install ${tool##*:}" >&2; exit 1; }
done

# Debian's arm64 Python with its headers, chosen by apt with an empty state of its own and unpacked, not installed.
if [ ! -e "$root/unpacked" ]; then
    mkdir -p "$root"/{lists/partial,cache/archives/partial} "$sys"
    : >"$root/status"
    apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::status="$root/status"
        -o Dir::State::lists="$root/lists" -o Dir::Cache="$root/cache" -o Debug::NoLocking=1 -o APT::Install-Recommends=0)
    [ "$(id -u)" = 0 ] && apt+=(-o APT::Sandbox::User=root)
    "${apt[@]}" update
    "${apt[@]}" install -y --download-only python3-dev libstdc++6
    for package in "$root"/cache/archives/*.deb; do dpkg-deb -x "$package" "$sys"; done
    # The shell and its tools belong to the host: qemu would look for them in here first.
    rm -rf "$sys"/bin/{sh,bash,dash} "$root/cache"
    touch "$root/unpacked"
fi
guest=$(find "$sys/usr/bin" -name 'python3.*[0-9]' | head -1)
version=${guest##*python}

# Guest processes start guest Python through a script that the host's kernel can run; sys.executable must therefore be the script.
mkdir -p "$root/bin" "$root/site"
cat >"$root/bin/python" <<SCRIPT
#!/bin/sh
exec env PYTHONHOME="$sys/usr" ONEMODEL_PYTHON="$root/bin/python" PYTHONPATH="$root/source:$root/site" qemu-aarch64 -L "$sys" "$guest" "\$@"
SCRIPT
chmod +x "$root/bin/python"
echo 'import os, sys; sys.executable = os.environ["ONEMODEL_PYTHON"]' >"$root/site/sitecustomize.py"

if [ ! -e "$root/site/numpy" ]; then
    platforms=()
    for minor in 17 24 26 27 28 31 34; do platforms+=(--platform "manylinux_2_${minor}_aarch64"); done
    .venv/bin/python -m pip install --quiet --target "$root/site" --python-version "$version" --implementation cp --only-binary=:all: \
        "${platforms[@]}" --platform manylinux2014_aarch64 setuptools cython numpy safetensors pytest pytest-xdist hypothesis psutil tqdm threadpoolctl
fi

mkdir -p "$root/source"
git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} sh -c '[ -e "$1" ] && cp -u --parents --preserve=timestamps "$1" "$2"' _ {} "$root/source"
cd "$root/source"
# The host's Python translates the .pyx files: the C is the same, and the guest would take ten times as long.
"$OLDPWD/.venv/bin/python" setup.py --quiet --version >/dev/null
# The guest names its headers by its own paths, where the host's lie for the compiler: the right ones go first.
export CC="aarch64-linux-gnu-gcc -I$sys/usr/include/python$version -I$sys/usr/include" LDSHARED="aarch64-linux-gnu-gcc -shared" AR=aarch64-linux-gnu-ar
"$root/bin/python" setup.py --quiet build_clib build_ext --inplace
"$root/bin/python" -c "from onemodel._kernels import table; print('neon:', table.available_isas()); assert table.get_isa() == 'neon'"
exec "$root/bin/python" -m pytest -p no:cacheprovider -m "not checkout and not oracle" "$@"
