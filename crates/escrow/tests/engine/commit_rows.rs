//! What the sandbox did, what another process did to the original since, and what must come of it: one table.

use crate::support::rows;

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

/// One line of the tables. Scripts are run by `sh -eu`; those that assert, in the original.
pub(crate) struct Row {
    /// What was done in the sandbox.
    pub(crate) here: String,
    /// What was done to the original meanwhile.
    pub(crate) there: String,
    /// The paths in conflict: any of these answers is right.
    pub(crate) conflicts: Vec<Vec<String>>,
    /// What holds when the sandbox's version was taken, or nothing was in conflict.
    pub(crate) ours: String,
    /// What holds when the original's version was kept.
    pub(crate) theirs: String,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}) x ({})", self.here, self.there)
    }
}

impl Row {
    /// The rows of one of the tables below: what was done here and there, the conflicts, what holds then.
    pub(crate) fn all(table: &str) -> Vec<Self> {
        let one = |[here, there, conflicts, ours, theirs]: [String; 5]| {
            let script = |text: String| if text == "-" { ":".to_owned() } else { text };
            let paths = |text: &str| {
                let paths = text.split(',').filter(|path| *path != "-");
                paths.map(str::to_owned).collect()
            };
            Self {
                here,
                there,
                conflicts: conflicts.split(" or ").map(paths).collect(),
                ours: script(ours),
                theirs: script(theirs),
            }
        };
        rows(table).into_iter().map(one).collect()
    }

    /// The same by writes of the engine, where it can do that: the paths that get the content `ours`.
    pub(crate) fn writes(&self) -> Option<Vec<&str>> {
        let steps = self.here.split("; ");
        let steps = steps.filter(|step| !step.starts_with("mkdir ") || step.contains(" -"));
        steps
            .map(|step| step.strip_prefix("printf ours > "))
            .collect()
    }
}

/// Both sides changed one file.
pub(crate) const FILES: &str = r#"
printf ours > file | printf theirs > file | file | is file ours | is file theirs
printf ours > file | t=$(stat -c %y file); printf elif > file; touch -d "$t" file | file | is file ours | is file elif
printf ours > file
    | printf elif > t; chmod 0640 t; touch -r file t; touch -r b keep; mv t file; touch -d 1995-05-06 .; rm keep | file
    | is file ours | is file elif
printf ours > n | printf theirs > n | n | is n ours | is n theirs
printf ours > file | rm file | file | is file ours | no file
rm file | printf theirs > file | file | no file | is file theirs
rm file | rm file | - | no file | -
chmod 0600 file | chmod 0644 file | file | mode file 600 | mode file 644
chmod 0600 file | printf theirs > file | file | mode file 600; is file file | mode file 640; is file theirs
printf ours > file | chmod 0644 file | file | mode file 640; is file ours | mode file 644; is file file
setfattr -n user.x -v ours file | setfattr -n user.x -v theirs file | file
    | test "$(getfattr --only-values -n user.x file)" = ours | test "$(getfattr --only-values -n user.x file)" = theirs
ln -sfn ours link | ln -sfn theirs link | link | leads link ours | leads link theirs
mv file moved | printf theirs > file | file | no file; is moved file | is file theirs; is moved file
# As most editors save.
printf ours > t; mv t file | rm file | file | is file ours | no file
printf ours > file; rm third | rm file | file | is file ours; no third | no file; no third
"#;

/// What only one side changed is kept, whichever side it was.
pub(crate) const APART: &str = r#"
printf ours > file; mkdir -p m/n; printf ours > m/n/o; rm b/two
    | printf theirs > other; printf x > new; rm b/one; chmod 0600 third; mkdir -p q/r | -
    | is 'file other m/n/o' ourstheirsours; test -e new; no b/one; no b/two; test -d b; test -d q/r; mode third 600 | -
printf ours > file | chmod 0600 other; chmod 0711 b; rmdir empty | -
    | mode other 600; mode b 711; no empty | -
rm -r d | printf theirs > d-x; printf theirs > d0 | - | no d; is 'd-x d0' theirstheirs | -
printf ours > d-x; printf ours > d0 | rm -r d | - | no d; is 'd-x d0' oursours | -
rm -r d; printf ours > d-x | printf theirs > d/b; printf theirs > d0 | d/b
    | no d; is 'd-x d0' ourstheirs | is 'd/b d-x d0' theirsourstheirs
rm -r a | rm -r a | - | no a | -
mkdir n; printf ours > n/x | mkdir n; printf theirs > n/y | - | is 'n/x n/y' ourstheirs | -
mkdir n; printf ours > n/x | mkdir n; printf theirs > n/x; printf theirs > n/y | n/x
    | is 'n/x n/y' ourstheirs | is 'n/x n/y' theirstheirs
# A process that made a directory private keeps it so.
mkdir -m 0755 n; printf ours > n/x | mkdir -m 0700 n; printf theirs > n/y | - or n
    | mode n 700; is 'n/x n/y' ourstheirs | mode n 700; is 'n/x n/y' ourstheirs
chmod 0700 b | printf theirs > b/new | - | mode b 700; is 'b/new b/one' theirsone | -
# What was touched on one side without effect loses nothing on the other.
touch file; chmod 0600 file; chmod 0640 file | printf elif > file | - or file | - | is file elif
"#;

/// Directories and things of other kinds.
pub(crate) const DIRECTORIES: &str = r#"
printf ours > n | mkdir n; printf theirs > n/y | n or n/y | is n ours | is n/y theirs
printf ours > n | mkdir n | n | is n ours | test -d n
printf ours > file | rm file; mkdir file | file | is file ours | test -d file
mkdir n; printf ours > n/x | printf theirs > n | n | is n/x ours | is n theirs
rm -r a | printf theirs > a/new | a/new | no a | is a/new theirs
rm -r a | printf theirs > a/sub/new; mkdir a/sub/more | a/sub/more,a/sub/new
    | no a | is a/sub/new theirs; test -d a/sub/more
rm -r a | mkdir a/made | a/made | no a | test -d a/made
rm -r a; mkdir a; printf ours > a/n | printf theirs > a/made | - or a/made
    | is a/n ours; no a/f | is 'a/n a/made' ourstheirs; no a/f
rm -r a | mv b a/b | a/b or a/b/one,a/b/two or a | no a | is a/b/one one
rm -r a | chmod 0700 a | a | no a | mode a 700
rm -r a | printf theirs > a/f | a/f | no a | is a/f theirs
printf ours > a/n | rm -r a | a/n or a | is a/n ours | no a
printf ours > a/f | rm -r a | a/f or a | is a/f ours; no a/sub | no a
mkdir a/n; printf ours > a/n/x; printf ours > a/n/y | rm -r a | a/n or a | is 'a/n/x a/n/y' oursours | no a
rm file; mkdir file; printf ours > file/in | printf theirs > file | file | is file/in ours | is file theirs
printf ours > file | rm file; ln -s other file | file | test ! -L file; is file ours | leads file other
printf ours > file | rm file; mkdir file; printf theirs > file/in | file or file/in | is file ours | is file/in theirs
printf ours > a/f | rm -r a; printf theirs > a | a/f or a | is a/f ours | is a theirs
printf ours > a/f | mv a elsewhere; ln -s elsewhere a | a/f or a
    | test ! -L a; is a/f ours; is elsewhere/f 'a file' | leads a elsewhere; is a/f 'a file'
rm -r b; printf ours > b | printf theirs > b/new | b/new or b | is b ours | is b/new theirs
rm -r a | rm -r a; printf theirs > a | a | no a | is a theirs
chmod 0700 b | chmod 0750 b | b | mode b 700 | mode b 750
chmod 0700 b | chmod 0750 b; printf theirs > b/new | b | mode b 700; test -e b/new | mode b 750; test -e b/new
chmod 0711 . | chmod 0700 . | . | mode . 711 | mode . 700
mv b c | printf theirs > b/one | b/one | no b; is c/one one | is 'b/one c/one' theirsone
rmdir empty | printf theirs > empty/x | empty/x | no empty | is empty/x theirs
"#;
