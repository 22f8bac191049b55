# SPDX-License-Identifier: BSD-2-Clause
"""What scripts/package is made of. Each file uses only those before it in this order: tools (what
has to be installed), release (names, version, time), build (the library for each machine), archive
(tarballs, checksums), wheel, debian, rpm, sbom, check (the tests of what was made)."""
