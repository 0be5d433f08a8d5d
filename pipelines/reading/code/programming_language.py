"""Find the programming language of a file from its name, its first line or, where languages share a suffix,
its text.

Names are those of GitHub Linguist (https://github.com/github-linguist/linguist).
"""

import re
from pathlib import PurePosixPath

_SUFFIXES = {
    "Ada": "adb ads", "Assembly": "asm s", "Batchfile": "bat cmd", "C": "c", "C#": "cs",
    "C++": "cc cpp cxx c++ hh hpp hxx ipp tpp", "CMake": "cmake", "CSS": "css", "CSV": "csv",
    "Clojure": "clj cljs cljc edn", "CoffeeScript": "coffee", "Common Lisp": "lisp lsp", "Crystal": "cr",
    "Cuda": "cu cuh", "Cython": "pyx pxd pxi", "D": "d", "Dart": "dart", "Diff": "diff patch",
    "Dockerfile": "dockerfile", "Elixir": "ex exs", "Elm": "elm", "Emacs Lisp": "el", "Erlang": "erl hrl",
    "F#": "fs fsi fsx", "Fortran": "f f77 for fpp", "Fortran Free Form": "f90 f95 f03 f08", "GLSL": "glsl vert frag",
    "Go": "go", "Gradle": "gradle", "GraphQL": "graphql gql", "Groovy": "groovy", "HCL": "hcl tf", "HLSL": "hlsl",
    "HTML": "html htm xhtml", "Haskell": "hs", "INI": "ini cfg", "JSON": "json jsonl geojson", "Java": "java",
    "JavaScript": "js mjs cjs jsx", "Jinja": "jinja jinja2 j2", "Julia": "jl", "Jupyter Notebook": "ipynb",
    "Kotlin": "kt kts", "LLVM": "ll", "Less": "less", "Literate Haskell": "lhs", "Lua": "lua",
    "Markdown": "md markdown", "Metal": "metal", "Mustache": "mustache", "Nim": "nim", "Nix": "nix",
    "OCaml": "ml mli", "Objective-C++": "mm", "PHP": "php phtml", "PLpgSQL": "pgsql", "Pascal": "pas dpr",
    "Perl": "pl pm t", "PowerShell": "ps1 psm1 psd1", "Protocol Buffer": "proto", "Python": "py pyi pyw", "R": "r",
    "Racket": "rkt", "Ruby": "rb rake gemspec", "Rust": "rs", "SCSS": "scss", "SQL": "sql", "SVG": "svg",
    "Sass": "sass", "Scala": "scala sc", "Scheme": "scm ss", "Shell": "sh bash zsh ksh", "Solidity": "sol",
    "Starlark": "bzl star", "Svelte": "svelte", "Swift": "swift", "SystemVerilog": "sv svh", "TOML": "toml",
    "TSX": "tsx", "Tcl": "tcl", "TeX": "tex sty cls bib", "Text": "txt", "Thrift": "thrift",
    "TypeScript": "ts mts cts", "VHDL": "vhd vhdl", "Vim Script": "vim", "Visual Basic .NET": "vb", "Vue": "vue",
    "WebAssembly": "wat", "XML": "xml xsd xsl xslt", "YAML": "yaml yml", "Zig": "zig", "reStructuredText": "rst",
}  # fmt: skip
_BY_SUFFIX = {suffix: name for name, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_BY_NAME = {
    "cmakelists.txt": "CMake", "dockerfile": "Dockerfile", "containerfile": "Dockerfile", "gemfile": "Ruby",
    "gnumakefile": "Makefile", "jenkinsfile": "Groovy", "makefile": "Makefile", "makefile.am": "Makefile",
    "makefile.in": "Makefile", "meson.build": "Meson", "rakefile": "Ruby", "vagrantfile": "Ruby",
    "build.bazel": "Starlark",
}  # fmt: skip
_INTERPRETERS = {
    "sh": "Shell", "bash": "Shell", "dash": "Shell", "ksh": "Shell", "zsh": "Shell", "python": "Python",
    "pypy": "Python", "perl": "Perl", "ruby": "Ruby", "node": "JavaScript", "deno": "TypeScript", "php": "PHP",
    "rscript": "R", "lua": "Lua", "tclsh": "Tcl", "awk": "Awk", "gawk": "Awk", "sed": "sed", "make": "Makefile",
    "julia": "Julia", "racket": "Racket", "groovy": "Groovy", "elixir": "Elixir", "pwsh": "PowerShell",
}  # fmt: skip
_LOOKED_AT = 100_000  # characters of a text, to tell languages with the same suffix apart
_SHEBANG = re.compile(r"#![ \t]*(?:\S*/)?(\S+)(?:[ \t]+(.*))?")
_CPLUSPLUS = re.compile(
    r"^[ \t]*(?:class \w[\w \t:<>,]*[{;]?$|namespace\b|template[ \t]*<|(?:public|private|protected):|using \w+"
    r"|#include <[a-z_]+>)",
    re.MULTILINE,
)
_OBJECTIVE_C = re.compile(
    r"^[ \t]*(?:@(?:interface|implementation|protocol|property|class|import)\b|#import\b)", re.MULTILINE
)
_PROLOG = re.compile(r"^:-|^[a-z]\w*\([^)\n]*\)[ \t]*:-", re.MULTILINE)
_MATLAB = re.compile(r"^(?:%|[ \t]*function\b|[ \t]*end[ \t]*;?[ \t]*$|\w+ = )", re.MULTILINE)
_TYPESCRIPT_XML = re.compile(r"\s*(?:<\?xml|<!DOCTYPE TS)")


def language_of(path: str, text: str) -> str | None:
    """Return the programming language of a file, or None if it is not recognised. The name or suffix of the
    file determines the language. For the suffixes `.h`, `.m`, `.pl` and `.ts`, which languages share, the
    text decides between them. If neither name nor suffix is known, the language is that of the `#!` line.
    """
    name = PurePosixPath(path).name.lower()
    if name in _BY_NAME:
        return _BY_NAME[name]
    text = text[:_LOOKED_AT]
    suffix = name.rpartition(".")[2] if "." in name[1:] else ""
    if suffix in ("h", "m"):
        if _OBJECTIVE_C.search(text):
            return "Objective-C"
        if suffix == "m":
            return "MATLAB" if _MATLAB.search(text) else None
        return "C++" if _CPLUSPLUS.search(text) else "C"
    if suffix == "pl" and not text.startswith("#!") and _PROLOG.search(text):
        return "Prolog"
    if suffix == "ts" and _TYPESCRIPT_XML.match(text):
        return "XML"
    return _BY_SUFFIX.get(suffix) or _interpreted(text)


def _interpreted(text: str) -> str | None:
    match = _SHEBANG.match(text)
    if not match:
        return None
    program, arguments = match[1], (match[2] or "").split()
    if program == "env":
        program = next((each for each in arguments if not each.startswith("-") and "=" not in each), "")
    return _INTERPRETERS.get(re.sub(r"[\d.]+$", "", program.rpartition("/")[2].lower()))
