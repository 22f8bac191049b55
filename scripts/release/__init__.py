# SPDX-License-Identifier: BSD-2-Clause
"""What scripts/package is made of, each file without those behind it: tools (what has to be
installed), release (names, version, time), build (the library for each machine), archive (tarballs,
checksums), wheel, debian, rpm, sbom, check (the tests of what was made)."""
