# SPDX-License-Identifier: BSD-2-Clause
"""The bill of materials, CycloneDX 1.5: what was made, with its digests, and from which commit.
Nothing of others is inside. It also names what built it (scope "excluded": no part of it)."""
import json
import time
import uuid

from release.archive import digest
from release.build import GLIBC
from release.tools import REQUIREMENTS

NAME = "libgpucache-{version}.cdx.json"


def built_with():
    for line in REQUIREMENTS.read_text(encoding="utf-8").split():
        name, _, version = line.partition("==")
        yield {"type": "application", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name,
               "version": version, "purl": f"pkg:pypi/{name}@{version}", "scope": "excluded"}


def make(release, out):
    this = f"pkg:generic/libgpucache@{release.version}"
    c_library = {"type": "library", "bom-ref": "glibc", "name": "glibc", "scope": "required",
                 "description": f"the running system's, {GLIBC} or newer; not contained"}
    files = [{"type": "file", "bom-ref": path.name, "name": path.name,
              "hashes": [{"alg": "SHA-256", "content": digest(path)}]}
             for path in sorted(out.iterdir())]
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch)),
            "component": {
                "type": "library", "bom-ref": this, "name": "libgpucache",
                "version": release.version, "purl": this,
                "licenses": [{"license": {"id": "BSD-2-Clause"}}],
                "properties": [{"name": "commit", "value": release.commit}]}},
        "components": [c_library, *files, *built_with()],
        "dependencies": [{"ref": this, "dependsOn": ["glibc"]}]}
    name = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))
    bill["serialNumber"] = f"urn:uuid:{name}"
    (out / NAME.format(version=release.version)).write_text(
        json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
