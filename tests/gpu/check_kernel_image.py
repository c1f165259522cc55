"""The compiled kernels hold machine code for every GPU generation that the build names.

Usage: check_kernel_image.py IMAGE GENERATION...
"""

import sys

_ELF = b"\x7fELF"
_FLAGS_OFFSET = 48  # e_flags of a 64-bit ELF header; its second byte is the generation


def generations(image: bytes) -> set[int]:
    """Of the ELF files inside of a fat binary."""
    found, at = set(), image.find(_ELF)
    while at >= 0:
        flags = int.from_bytes(image[at + _FLAGS_OFFSET:at + _FLAGS_OFFSET + 4], "little")
        found.add((flags >> 8) & 0xFF)
        at = image.find(_ELF, at + 1)
    return found


def main() -> int:
    with open(sys.argv[1], "rb") as file:
        found = generations(file.read())
    missing = {int(each) for each in sys.argv[2:]} - found
    print(f"kernels for {sorted(found)}" + (f", none for {sorted(missing)}" if missing else ""))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
