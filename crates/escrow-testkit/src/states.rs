//! Scripts that lead a furnished tree through every kind of change, and one that tells all that can be seen of it.

use std::collections::BTreeSet;

/// Everything that can be seen of a tree, inside.
pub const SIGNATURE: &str = r"
    find . -type d -printf '%p d %m %U:%G %T@\n' -o -printf '%p %y %m %U:%G %T@ %l %n\n' | sort
    find . -type f -print0 | sort -z | xargs -0 -r sha256sum
    getfattr -R -h -d -m 'user\.' . 2>/dev/null | sort";

/// One line for each kind of thing that can happen to a file.
pub const BEFORE: &str = r"
    echo added > added; mkdir -p dir/empty dir/deep/er; echo deep > dir/deep/er/file; ln -s a.txt to-a
    ln dir/deep/er/file dir/second-name; mkfifo pipe; echo secret > closed; chmod 0400 closed
    echo dark > dark; chmod 0200 dark
    setfattr -n user.colour -v red added; echo changed >> a.txt; touch -d @1000000000 added
    mkdir many; n=0; while [ $n -lt 100 ]; do echo $n > many/$n; n=$((n+1)); done; touch -d @77 many
    mkdir locked; echo in > locked/in; chmod 0500 locked; setfattr -n user.dir -v 1 dir";

/// What was before becomes another: added, deleted, renamed, retyped, modes, attributes, links, closed ones.
pub const AFTER: &str = r"
    echo later > later; rm added; mkdir added; mv dir moved; rm to-a; echo file > to-a; rm pipe
    chmod 0700 src; rm -r src; ln -s nowhere src; chmod 0600 closed; echo more > closed
    setfattr -n user.new -v 1 a.txt; : > a.txt; mkdir new-empty; ln a.txt another-name; rm -r many/1*
    rmdir moved/empty; touch link many/20; chmod 0700 locked; echo more >> locked/in; rm link
    setfattr -x user.dir moved; touch fleeting; rm fleeting; chmod 0711 .
    chmod 0600 dark; echo light >> dark; chmod 0200 dark";

/// And once more, over what was kept a first time: directories that became others among it.
pub const LATER: &str = r"
    rm -r added; echo added > added; rm -r moved/deep; mkdir -p moved/deep/er; echo new > moved/deep/er/new
    rm src; mkdir src; echo mine > src/mine; rm later to-a; echo many > many/77; mkdir new-empty/inner
    chmod 0755 .; rm -r locked; : > locked";

/// Two of what `SIGNATURE` printed, compared; panics with the lines that differ.
#[track_caller]
pub fn same(expected: &str, found: &str, what: &str) {
    let was: BTreeSet<&str> = expected.lines().collect();
    let is: BTreeSet<&str> = found.lines().collect();
    let missing: Vec<_> = was.difference(&is).collect();
    let more: Vec<_> = is.difference(&was).collect();
    assert!(
        expected == found,
        "{what}: missing {missing:#?}, instead {more:#?}"
    );
}
