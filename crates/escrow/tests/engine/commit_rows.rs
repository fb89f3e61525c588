//! What the sandbox did, what another process did to the original since, and what must come of it: one table.

/// One line of the table. Scripts are run by `sh -eu`; those that assert, in the original.
#[derive(Clone)]
pub(crate) struct Row {
    /// What was done in the sandbox.
    pub(crate) here: &'static str,
    /// The same by writes of the engine, where it can: paths, which get the content `ours`.
    pub(crate) writes: &'static [&'static str],
    /// What was done to the original meanwhile.
    pub(crate) there: &'static str,
    /// The paths in conflict: any of these answers is right.
    pub(crate) conflicts: &'static [&'static [&'static str]],
    /// What holds when the sandbox's version was taken, or nothing was in conflict.
    pub(crate) ours: &'static str,
    /// What holds when the original's version was kept.
    pub(crate) theirs: &'static str,
}

pub(crate) const BASE: &str = r#"
a/f "a file"
a/sub/deep "deep"
b/one "one"
b/two 0640 "two"
d/b "d b"
d-x "d-x"
d0 "d0"
file 0640 "file"
other "other"
third "third"
link -> file
empty/
"#;

const NONE: &[&[&str]] = &[&[]];

/// Both sides changed one file.
pub(crate) const FILES: &[Row] = &[
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "printf theirs > file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test \"$(cat file)\" = theirs",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "t=$(stat -c %y file); printf elif > file; touch -d \"$t\" file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test \"$(cat file)\" = elif",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "printf elif > t; chmod 0640 t; touch -r file t; touch -r b keep; mv t file; \
                touch -d 1995-05-06 .; rm keep",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test \"$(cat file)\" = elif",
    },
    Row {
        here: "printf ours > n",
        writes: &["n"],
        there: "printf theirs > n",
        conflicts: &[&["n"]],
        ours: "test \"$(cat n)\" = ours",
        theirs: "test \"$(cat n)\" = theirs",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "rm file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test ! -e file",
    },
    Row {
        here: "rm file",
        writes: &[],
        there: "printf theirs > file",
        conflicts: &[&["file"]],
        ours: "test ! -e file",
        theirs: "test \"$(cat file)\" = theirs",
    },
    Row {
        here: "rm file",
        writes: &[],
        there: "rm file",
        conflicts: NONE,
        ours: "test ! -e file",
        theirs: "",
    },
    Row {
        here: "chmod 0600 file",
        writes: &[],
        there: "chmod 0644 file",
        conflicts: &[&["file"]],
        ours: "test \"$(stat -c %a file)\" = 600",
        theirs: "test \"$(stat -c %a file)\" = 644",
    },
    Row {
        here: "chmod 0600 file",
        writes: &[],
        there: "printf theirs > file",
        conflicts: &[&["file"]],
        ours: "test \"$(stat -c %a file)\" = 600 -a \"$(cat file)\" = file",
        theirs: "test \"$(stat -c %a file)\" = 640 -a \"$(cat file)\" = theirs",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "chmod 0644 file",
        conflicts: &[&["file"]],
        ours: "test \"$(stat -c %a file)\" = 640 -a \"$(cat file)\" = ours",
        theirs: "test \"$(stat -c %a file)\" = 644 -a \"$(cat file)\" = file",
    },
    Row {
        here: "setfattr -n user.x -v ours file",
        writes: &[],
        there: "setfattr -n user.x -v theirs file",
        conflicts: &[&["file"]],
        ours: "test \"$(getfattr --only-values -n user.x file)\" = ours",
        theirs: "test \"$(getfattr --only-values -n user.x file)\" = theirs",
    },
    Row {
        here: "ln -sfn ours link",
        writes: &[],
        there: "ln -sfn theirs link",
        conflicts: &[&["link"]],
        ours: "test \"$(readlink link)\" = ours",
        theirs: "test \"$(readlink link)\" = theirs",
    },
    Row {
        here: "mv file moved",
        writes: &[],
        there: "printf theirs > file",
        conflicts: &[&["file"]],
        ours: "test ! -e file -a \"$(cat moved)\" = file",
        theirs: "test \"$(cat file)\" = theirs -a \"$(cat moved)\" = file",
    },
    // As most editors save.
    Row {
        here: "printf ours > t; mv t file",
        writes: &[],
        there: "rm file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test ! -e file",
    },
    Row {
        here: "printf ours > file; rm third",
        writes: &[],
        there: "rm file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours -a ! -e third",
        theirs: "test ! -e file -a ! -e third",
    },
];

/// What only one side changed is kept, whichever side it was.
pub(crate) const APART: &[Row] = &[
    Row {
        here: "printf ours > file; mkdir -p m/n; printf ours > m/n/o; rm b/two",
        writes: &[],
        there: "printf theirs > other; printf x > new; rm b/one; chmod 0600 third; mkdir -p q/r",
        conflicts: NONE,
        ours: "test \"$(cat file other m/n/o)\" = ourstheirsours -a -e new -a ! -e b/one; \
               test ! -e b/two -a -d b -a -d q/r -a \"$(stat -c %a third)\" = 600",
        theirs: "",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "chmod 0600 other; chmod 0711 b; rmdir empty",
        conflicts: NONE,
        ours: "test \"$(stat -c %a other b | tr '\\n' ' ')\" = '600 711 ' -a ! -e empty",
        theirs: "",
    },
    Row {
        here: "rm -r d",
        writes: &[],
        there: "printf theirs > d-x; printf theirs > d0",
        conflicts: NONE,
        ours: "test ! -e d -a \"$(cat d-x d0)\" = theirstheirs",
        theirs: "",
    },
    Row {
        here: "printf ours > d-x; printf ours > d0",
        writes: &["d-x", "d0"],
        there: "rm -r d",
        conflicts: NONE,
        ours: "test ! -e d -a \"$(cat d-x d0)\" = oursours",
        theirs: "",
    },
    Row {
        here: "rm -r d; printf ours > d-x",
        writes: &[],
        there: "printf theirs > d/b; printf theirs > d0",
        conflicts: &[&["d/b"]],
        ours: "test ! -e d -a \"$(cat d-x d0)\" = ourstheirs",
        theirs: "test \"$(cat d/b d-x d0)\" = theirsourstheirs",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "rm -r a",
        conflicts: NONE,
        ours: "test ! -e a",
        theirs: "",
    },
    Row {
        here: "mkdir n; printf ours > n/x",
        writes: &["n/x"],
        there: "mkdir n; printf theirs > n/y",
        conflicts: NONE,
        ours: "test \"$(cat n/x n/y)\" = ourstheirs",
        theirs: "",
    },
    Row {
        here: "mkdir n; printf ours > n/x",
        writes: &["n/x"],
        there: "mkdir n; printf theirs > n/x; printf theirs > n/y",
        conflicts: &[&["n/x"]],
        ours: "test \"$(cat n/x n/y)\" = ourstheirs",
        theirs: "test \"$(cat n/x n/y)\" = theirstheirs",
    },
    // A process that made a directory private keeps it so.
    Row {
        here: "mkdir -m 0755 n; printf ours > n/x",
        writes: &[],
        there: "mkdir -m 0700 n; printf theirs > n/y",
        conflicts: &[&[], &["n"]],
        ours: "test \"$(stat -c %a n)\" = 700 -a \"$(cat n/x n/y)\" = ourstheirs",
        theirs: "test \"$(stat -c %a n)\" = 700 -a \"$(cat n/x n/y)\" = ourstheirs",
    },
    Row {
        here: "chmod 0700 b",
        writes: &[],
        there: "printf theirs > b/new",
        conflicts: NONE,
        ours: "test \"$(stat -c %a b)\" = 700 -a \"$(cat b/new b/one)\" = theirsone",
        theirs: "",
    },
    // What was touched on one side without effect loses nothing on the other.
    Row {
        here: "touch file; chmod 0600 file; chmod 0640 file",
        writes: &[],
        there: "printf elif > file",
        conflicts: &[&[], &["file"]],
        ours: "",
        theirs: "test \"$(cat file)\" = elif",
    },
];

/// Directories and things of other kinds.
pub(crate) const DIRECTORIES: &[Row] = &[
    Row {
        here: "printf ours > n",
        writes: &["n"],
        there: "mkdir n; printf theirs > n/y",
        conflicts: &[&["n"], &["n/y"]],
        ours: "test \"$(cat n)\" = ours",
        theirs: "test \"$(cat n/y)\" = theirs",
    },
    Row {
        here: "printf ours > n",
        writes: &["n"],
        there: "mkdir n",
        conflicts: &[&["n"]],
        ours: "test \"$(cat n)\" = ours",
        theirs: "test -d n",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "rm file; mkdir file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test -d file",
    },
    Row {
        here: "mkdir n; printf ours > n/x",
        writes: &["n/x"],
        there: "printf theirs > n",
        conflicts: &[&["n"]],
        ours: "test \"$(cat n/x)\" = ours",
        theirs: "test \"$(cat n)\" = theirs",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "printf theirs > a/new",
        conflicts: &[&["a/new"]],
        ours: "test ! -e a",
        theirs: "test \"$(cat a/new)\" = theirs",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "printf theirs > a/sub/new; mkdir a/sub/more",
        conflicts: &[&["a/sub/more", "a/sub/new"]],
        ours: "test ! -e a",
        theirs: "test \"$(cat a/sub/new)\" = theirs -a -d a/sub/more",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "mkdir a/made",
        conflicts: &[&["a/made"]],
        ours: "test ! -e a",
        theirs: "test -d a/made",
    },
    Row {
        here: "rm -r a; mkdir a; printf ours > a/n",
        writes: &[],
        there: "printf theirs > a/made",
        conflicts: &[&[], &["a/made"]],
        ours: "test \"$(cat a/n)\" = ours -a ! -e a/f",
        theirs: "test \"$(cat a/n a/made)\" = ourstheirs -a ! -e a/f",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "mv b a/b",
        conflicts: &[&["a/b"], &["a/b/one", "a/b/two"], &["a"]],
        ours: "test ! -e a",
        theirs: "test \"$(cat a/b/one)\" = one",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "chmod 0700 a",
        conflicts: &[&["a"]],
        ours: "test ! -e a",
        theirs: "test \"$(stat -c %a a)\" = 700",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "printf theirs > a/f",
        conflicts: &[&["a/f"]],
        ours: "test ! -e a",
        theirs: "test \"$(cat a/f)\" = theirs",
    },
    Row {
        here: "printf ours > a/n",
        writes: &["a/n"],
        there: "rm -r a",
        conflicts: &[&["a/n"], &["a"]],
        ours: "test \"$(cat a/n)\" = ours",
        theirs: "test ! -e a",
    },
    Row {
        here: "printf ours > a/f",
        writes: &["a/f"],
        there: "rm -r a",
        conflicts: &[&["a/f"], &["a"]],
        ours: "test \"$(cat a/f)\" = ours -a ! -e a/sub",
        theirs: "test ! -e a",
    },
    Row {
        here: "mkdir a/n; printf ours > a/n/x; printf ours > a/n/y",
        writes: &["a/n/x", "a/n/y"],
        there: "rm -r a",
        conflicts: &[&["a/n"], &["a"]],
        ours: "test \"$(cat a/n/x a/n/y)\" = oursours",
        theirs: "test ! -e a",
    },
    Row {
        here: "rm file; mkdir file; printf ours > file/in",
        writes: &[],
        there: "printf theirs > file",
        conflicts: &[&["file"]],
        ours: "test \"$(cat file/in)\" = ours",
        theirs: "test \"$(cat file)\" = theirs",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "rm file; ln -s other file",
        conflicts: &[&["file"]],
        ours: "test ! -L file -a \"$(cat file)\" = ours",
        theirs: "test \"$(readlink file)\" = other",
    },
    Row {
        here: "printf ours > file",
        writes: &["file"],
        there: "rm file; mkdir file; printf theirs > file/in",
        conflicts: &[&["file"], &["file/in"]],
        ours: "test \"$(cat file)\" = ours",
        theirs: "test \"$(cat file/in)\" = theirs",
    },
    Row {
        here: "printf ours > a/f",
        writes: &["a/f"],
        there: "rm -r a; printf theirs > a",
        conflicts: &[&["a/f"], &["a"]],
        ours: "test \"$(cat a/f)\" = ours",
        theirs: "test \"$(cat a)\" = theirs",
    },
    Row {
        here: "printf ours > a/f",
        writes: &["a/f"],
        there: "mv a elsewhere; ln -s elsewhere a",
        conflicts: &[&["a/f"], &["a"]],
        ours: "test ! -L a -a \"$(cat a/f)\" = ours -a \"$(cat elsewhere/f)\" = 'a file'",
        theirs: "test \"$(readlink a)\" = elsewhere -a \"$(cat a/f)\" = 'a file'",
    },
    Row {
        here: "rm -r b; printf ours > b",
        writes: &[],
        there: "printf theirs > b/new",
        conflicts: &[&["b/new"], &["b"]],
        ours: "test \"$(cat b)\" = ours",
        theirs: "test \"$(cat b/new)\" = theirs",
    },
    Row {
        here: "rm -r a",
        writes: &[],
        there: "rm -r a; printf theirs > a",
        conflicts: &[&["a"]],
        ours: "test ! -e a",
        theirs: "test \"$(cat a)\" = theirs",
    },
    Row {
        here: "chmod 0700 b",
        writes: &[],
        there: "chmod 0750 b",
        conflicts: &[&["b"]],
        ours: "test \"$(stat -c %a b)\" = 700",
        theirs: "test \"$(stat -c %a b)\" = 750",
    },
    Row {
        here: "chmod 0700 b",
        writes: &[],
        there: "chmod 0750 b; printf theirs > b/new",
        conflicts: &[&["b"]],
        ours: "test \"$(stat -c %a b)\" = 700 -a -e b/new",
        theirs: "test \"$(stat -c %a b)\" = 750 -a -e b/new",
    },
    Row {
        here: "chmod 0711 .",
        writes: &[],
        there: "chmod 0700 .",
        conflicts: &[&["."]],
        ours: "test \"$(stat -c %a .)\" = 711",
        theirs: "test \"$(stat -c %a .)\" = 700",
    },
    Row {
        here: "mv b c",
        writes: &[],
        there: "printf theirs > b/one",
        conflicts: &[&["b/one"]],
        ours: "test ! -e b -a \"$(cat c/one)\" = one",
        theirs: "test \"$(cat b/one c/one)\" = theirsone",
    },
    Row {
        here: "rmdir empty",
        writes: &[],
        there: "printf theirs > empty/x",
        conflicts: &[&["empty/x"]],
        ours: "test ! -e empty",
        theirs: "test \"$(cat empty/x)\" = theirs",
    },
];
