//! What a file is for, judged by its path alone.
//!
//! The rules have a version that is part of the profile: when a rule changes, the version rises, and
//! old results stay comparable among themselves. Content is never looked at.

/// The version of the rules below; raise it with every change of them.
pub const CLASS_RULES: u32 = 1;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileClass {
    /// Source code of the product.
    Code,
    /// Tests and their fixtures.
    Test,
    /// Written for people.
    Doc,
    /// Build files, settings, packaging.
    Config,
    /// Made by a program: lock files, minified code, generated sources.
    Generated,
    /// Other people's code that was copied in.
    Vendored,
    /// Everything else: tables, pictures, archives.
    Data,
}

impl FileClass {
    /// All classes, in the order in which [`FileClass::index`] counts them.
    pub const ALL: [Self; 7] = [
        Self::Code,
        Self::Test,
        Self::Doc,
        Self::Config,
        Self::Generated,
        Self::Vendored,
        Self::Data,
    ];

    /// Its name in results: `code`, `test`, `doc`, `config`, `generated`, `vendored` or `data`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Test => "test",
            Self::Doc => "doc",
            Self::Config => "config",
            Self::Generated => "generated",
            Self::Vendored => "vendored",
            Self::Data => "data",
        }
    }

    /// Its place in [`FileClass::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The class of a path; the first rule that fits decides.
    pub fn of(path: &[u8]) -> Self {
        let path = String::from_utf8_lossy(path).to_ascii_lowercase();
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let folder_is = |names: &[&str]| folders.split('/').any(|folder| names.contains(&folder));
        let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
        if folder_is(VENDOR_FOLDERS) {
            return Self::Vendored;
        }
        if GENERATED_NAMES.contains(&name)
            || folder_is(GENERATED_FOLDERS)
            || GENERATED_ENDINGS.iter().any(|ending| name.ends_with(ending))
        {
            return Self::Generated;
        }
        if folder_is(TEST_FOLDERS) || is_test_name(stem, extension) {
            return Self::Test;
        }
        if DOC_EXTENSIONS.contains(&extension) || DOC_NAMES.contains(&stem) {
            return Self::Doc;
        }
        if CODE_EXTENSIONS.contains(&extension) {
            return Self::Code;
        }
        if folder_is(DOC_FOLDERS) {
            return Self::Doc;
        }
        if CONFIG_EXTENSIONS.contains(&extension)
            || CONFIG_NAMES.contains(&name)
            || name.starts_with('.')
            || name.starts_with("dockerfile")
        {
            return Self::Config;
        }
        Self::Data
    }
}

/// `test_x`, `x_test`, `x.spec`, `x-test`, `tests`, only for what can be a program.
fn is_test_name(stem: &str, extension: &str) -> bool {
    let word = |word: &str| matches!(word, "test" | "tests" | "spec" | "specs");
    CODE_EXTENSIONS.contains(&extension)
        && (stem.split(['_', '.', '-']).next().is_some_and(word)
            || stem.rsplit(['_', '.', '-']).next().is_some_and(word))
}

const VENDOR_FOLDERS: &[&str] =
    &["vendor", "vendored", "third_party", "third-party", "thirdparty", "node_modules", "deps"];
const GENERATED_FOLDERS: &[&str] = &["generated", "__generated__", "__snapshots__"];
const GENERATED_NAMES: &[&str] = &[
    "cargo.lock",
    "composer.lock",
    "flake.lock",
    "gemfile.lock",
    "go.sum",
    "package-lock.json",
    "pipfile.lock",
    "pnpm-lock.yaml",
    "poetry.lock",
    "uv.lock",
    "yarn.lock",
];
const GENERATED_ENDINGS: &[&str] =
    &[".min.js", ".min.css", ".map", ".pb.go", "_pb2.py", ".pb.cc", ".pb.h", ".g.dart", ".snap"];
const TEST_FOLDERS: &[&str] =
    &["test", "tests", "testing", "__tests__", "spec", "specs", "testdata", "fixtures", "e2e", "t"];
const DOC_FOLDERS: &[&str] = &["doc", "docs", "documentation"];
const DOC_EXTENSIONS: &[&str] =
    &["md", "markdown", "rst", "adoc", "asciidoc", "tex", "texi", "org", "pod", "man", "mdx"];
const DOC_NAMES: &[&str] =
    &["readme", "changelog", "changes", "news", "authors", "contributing", "license", "copying"];
const CONFIG_EXTENSIONS: &[&str] = &[
    "toml",
    "yaml",
    "yml",
    "json",
    "json5",
    "ini",
    "cfg",
    "conf",
    "config",
    "properties",
    "xml",
    "gradle",
    "cmake",
    "mk",
    "am",
    "ac",
    "m4",
    "in",
    "service",
    "plist",
    "tf",
    "tfvars",
    "lock",
];
const CONFIG_NAMES: &[&str] =
    &["makefile", "gnumakefile", "rakefile", "gemfile", "procfile", "justfile", "configure"];
const CODE_EXTENSIONS: &[&str] = &[
    "asm", "awk", "bash", "bat", "c", "cc", "cl", "clj", "cljs", "cpp", "cr", "cs", "css", "cu",
    "cxx", "d", "dart", "el", "elm", "erl", "ex", "exs", "f", "f90", "fish", "fs", "glsl", "go",
    "groovy", "h", "hh", "hpp", "hrl", "hs", "htm", "html", "hxx", "java", "jl", "js", "jsx", "kt",
    "kts", "less", "lisp", "lua", "m", "ml", "mli", "mm", "mjs", "nim", "nix", "php", "pl", "pm",
    "proto", "ps1", "py", "pyx", "r", "rb", "rs", "s", "sass", "scala", "scm", "scss", "sh", "sol",
    "sql", "svelte", "swift", "tcl", "ts", "tsx", "v", "vb", "vhd", "vim", "vue", "wat", "zig",
    "zsh",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_classes() {
        for (path, class) in [
            ("src/main.rs", FileClass::Code),
            ("src/Server.JAVA", FileClass::Code),
            ("docs/conf.py", FileClass::Code),
            ("tests/unit/a.rs", FileClass::Test),
            ("src/testdata/x.json", FileClass::Test),
            ("pkg/server_test.go", FileClass::Test),
            ("ui/button.spec.tsx", FileClass::Test),
            ("contest.py", FileClass::Code),
            ("test.txt", FileClass::Data),
            ("README.md", FileClass::Doc),
            ("LICENSE", FileClass::Doc),
            ("docs/picture.png", FileClass::Doc),
            ("Cargo.toml", FileClass::Config),
            (".github/workflows/ci.yml", FileClass::Config),
            (".gitignore", FileClass::Config),
            ("Makefile", FileClass::Config),
            ("Cargo.lock", FileClass::Generated),
            ("web/app.min.js", FileClass::Generated),
            ("vendor/tests/x.go", FileClass::Vendored),
            ("deps/lua/src/lua.c", FileClass::Vendored),
            ("data/table.csv", FileClass::Data),
            ("", FileClass::Data),
        ] {
            assert_eq!(FileClass::of(path.as_bytes()), class, "{path}");
        }
        assert_eq!(FileClass::of(b"caf\xe9.c"), FileClass::Code);
    }

    #[test]
    fn the_index_is_the_place() {
        for (place, class) in FileClass::ALL.into_iter().enumerate() {
            assert_eq!(class.index(), place, "{}", class.as_str());
        }
    }
}
