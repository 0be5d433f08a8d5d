"""Licences detected from their texts and notices, against those that the packages of this environment declare."""

import re
from importlib.metadata import distributions

import pytest

from pipelines.reading.code.licence_text import licence_of_header, licences_in, together
from pipelines.reading.entries.licence_names import is_licence_name, nearest

MIT = """Copyright (c) 2020 A. Miller

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including the rights to use and sell it, subject to the
following conditions:

The above copyright notice and this permission notice shall be included in all copies of the Software.
"""
BSD = """Redistribution and use in source and binary forms, with or without
# modification, are permitted provided that the following conditions are met: 1. keep this notice
"""
ISC = "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"
GPL = "GNU GENERAL PUBLIC LICENSE\n   Version 2, June 1991\n\n commercially only for noncommercial distribution"
APACHE = "Apache License\n  Version 2.0, January 2004\n http://www.apache.org/licenses/"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (MIT, ["MIT"]),
        (MIT.partition(", subject to")[0] + ".", ["MIT-0"]),
        (MIT.replace("and this permission notice ", ""), ["unknown"]),
        (
            MIT.partition("The above")[0] + "Redistributions of source code must retain the above copyright notice",
            ["NCSA"],
        ),
        (MIT + "The Software shall be used for Good, not Evil.", ["JSON"]),
        (MIT + '"Commons Clause" License Condition v1.0', ["unknown"]),
        (MIT + "For non-commercial use only.", ["unknown"]),
        (MIT + "And now for something else. " * 200, ["MIT", "unknown"]),
        (BSD, ["BSD-2-Clause"]),
        (BSD + "The name may not be used to endorse or promote products", ["BSD-3-Clause"]),
        (BSD + "All advertising materials mentioning features must say so", ["BSD-4-Clause"]),
        (ISC, ["0BSD"]),
        (ISC + ", provided that the above copyright notice", ["ISC"]),
        (GPL, ["GPL-2.0"]),
        (APACHE + MIT, ["Apache-2.0", "MIT"]),
        ('Licensed under the Apache License, Version 2.0 (the "License")', ["Apache-2.0"]),
        ("All rights reserved.", ["unknown"]),
        ("\n***\n", []),
    ],
)
def test_texts(text, names):
    assert licences_in(text) == names
    assert licences_in("\n".join(f"// {line.upper()}\r" for line in text.split("\n"))) == names


@pytest.mark.parametrize(
    ("head", "expression"),
    [
        ("# SPDX-License-Identifier: MIT", "MIT"),
        (
            "/* SPDX-License-Identifier: (GPL-2.0-only WITH Linux-syscall-note) OR MIT */",
            "(GPL-2.0-only WITH Linux-syscall-note) OR MIT",
        ),
        ("<!-- SPDX-License-Identifier: LicenseRef-ours -->", "LicenseRef-ours"),
        ("# SPDX-License-Identifier: ", None),
        ("// " + MIT.replace("\n", "\n// "), "MIT"),
        ("# Licensed under the Apache License, Version 2.0", "Apache-2.0"),
        (
            " * it under the terms of the GNU Lesser General Public License as published by\n * the Free Software Foundation; "
            "either version 2.1 of the\n * License, or (at your option) any later version.",
            "LGPL-2.1-or-later",
        ),
        ("under the terms of the GNU General Public License version 2 as published by", "GPL-2.0-only"),
        ("the GNU General Public License version 3, 29 June 2007", "GPL-3.0-only"),
        ("GNU Lesser General Public License version 2.1, February 1999", "LGPL-2.1-only"),
        ("GNU General Public License version 3 or later", "GPL-3.0-or-later"),
        ("GNU Affero General Public License, version 3 or (at your option) any newer version", "AGPL-3.0-or-later"),
        ("import this  # licence plates", None),
    ],
)
def test_heads_of_files(head, expression):
    assert licence_of_header(head) == expression


@pytest.mark.long
def test_installed_packages_have_the_licences_that_they_declare():
    declared, equal = [], 0
    for each in distributions():
        expression = each.metadata.get("License-Expression") or ""
        files = [file for file in each.files or () if is_licence_name(str(file)) and ".dist-info" in str(file)]
        if len(files) == 1 and re.fullmatch(r"[A-Za-z0-9.-]+", expression) and files[0].locate().is_file():
            found = licences_in(files[0].locate().read_text("utf-8", "replace"))
            declared.append((each.name, expression, found))
            equal += found == [expression]
    if len(declared) < 20:
        pytest.skip("too few installed packages declare their licence")
    wrong = [(name, expression, found) for name, expression, found in declared if found != [expression]]
    assert equal / len(declared) > 0.9, wrong
    assert not [each for each in wrong if len(each[2]) < 2], "a file with one licence is taken for another"


def test_several_licences_are_joined_strictly():
    assert together(["Apache-2.0", "MIT", "MIT"]) == "Apache-2.0 AND MIT"
    assert together([]) is None


@pytest.mark.parametrize(
    "name",
    ["LICENSE", "a/licence.md", "COPYING.LESSER", "LICENSE-APACHE", "UNLICENSE", "x!b/License.txt", "MIT-LICENSE.txt"],
)
def test_names_of_licence_files(name):
    assert is_licence_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("license.py", "licenses.json", "src/licensing.md", "COPYING/readme", "unlicensed"),
        *("__pycache__/licence_text.cpython-311.pyc", "License.class", "license-badge.svg", "copyright.PNG"),
    ],
)
def test_other_names(name):
    assert not is_licence_name(name)


def test_the_nearest_directory_counts():
    known = {"": "top", "a/b": "inner", "a!": "marked"}
    paths = ["f", "a/f", "a/b/f", "a/b/c/f", "a!/s/f", "a!f"]
    assert [nearest(path, known) for path in paths] == ["top", "top", "inner", "inner", "marked", "top"]
    assert nearest("b/f", {"a": "other"}) is None
