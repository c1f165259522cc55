"""Installs the client into a temporary prefix, builds a C program against it once by pkg-config and
once by CMake's find_package, and runs both against a real luwud."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile


def run(*command, **options):
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, timeout=120, **options)


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "source", "luwud", "cmake", "cc"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--sanitize", default="")
    args = parser.parse_args()
    sys.path.insert(0, str(args.source / "tests" / "system"))
    import cluster  # needs the path above

    with tempfile.TemporaryDirectory(prefix="luwu-install-") as scratch:
        prefix = pathlib.Path(scratch) / "prefix"
        work = pathlib.Path(scratch) / "work"
        work.mkdir()
        for component in ("libluwu1", "libluwu-dev"):
            run(args.cmake, "--install", args.build, "--prefix", prefix, "--component", component,
                stdout=subprocess.DEVNULL)
        libraries = [path for path in prefix.rglob("libluwu.so.1")]
        assert len(libraries) == 1, libraries
        libdir = libraries[0].parent
        consumer = args.source / "tests" / "abi" / "consumer"
        flags = [f"-fsanitize={args.sanitize}"] if args.sanitize else []
        env = dict(os.environ, PKG_CONFIG_PATH=str(libdir / "pkgconfig"),
                   LD_LIBRARY_PATH=str(libdir))

        found = subprocess.run(["pkg-config", "--cflags", "--libs", "luwu"], check=True, env=env,
                               text=True, stdout=subprocess.PIPE).stdout.split()
        by_pkg_config = work / "by-pkg-config"
        run(args.cc, "-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", *flags,
            consumer / "consumer.c", "-o", by_pkg_config, *found)

        run(args.cmake, "-S", consumer, "-B", work / "cmake", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_C_COMPILER={args.cc}", f"-DCMAKE_C_FLAGS={' '.join(flags)}",
            stdout=subprocess.DEVNULL)
        run(args.cmake, "--build", work / "cmake", stdout=subprocess.DEVNULL)

        with cluster.Cluster(args.luwud) as daemons:
            run(by_pkg_config, daemons.endpoints, "by-pkg-config", env=env)
            run(work / "cmake" / "consumer", daemons.endpoints, "by-cmake", env=env)


if __name__ == "__main__":
    main()
