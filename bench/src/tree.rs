//! The trees that are measured: the same files each time, spread over directories of forty.

use std::path::{Path, PathBuf};

use crate::bench::{Bench, command, time};

const FILES_IN_A_DIRECTORY: usize = 40;
const DIRECTORIES_IN_A_DIRECTORY: usize = 50;

/// A tree on disk.
pub(crate) struct Tree {
    /// Its root.
    pub(crate) path: PathBuf,
    /// How many files it has.
    pub(crate) files: usize,
}

/// The path of a file below the root.
pub(crate) fn name(file: usize) -> String {
    let directory = file / FILES_IN_A_DIRECTORY;
    format!(
        "part-{:03}/module_{:02}/source-{file:07}.txt",
        directory / DIRECTORIES_IN_A_DIRECTORY,
        directory % DIRECTORIES_IN_A_DIRECTORY,
    )
}

impl Tree {
    /// The tree of so many files of 4 KiB on average, between 512 bytes and 7.5 KiB; made once.
    pub(crate) fn new(bench: &Bench, files: usize) -> Self {
        let path = bench.fresh(&format!("tree-{files}"));
        if !path.exists() {
            fill(&path, files, |file| 512 + file * 2_654_435_761 % 7168);
            bench.settle();
        }
        Self { path, files }
    }

    /// A tree of its own of so many small files, for changes that are not to be seen elsewhere.
    pub(crate) fn filled(bench: &Bench, name: &str, files: usize) -> Self {
        let path = bench.fresh(name);
        fill(&path, files, |file| 16 + file % 64);
        bench.settle();
        Self { path, files }
    }

    /// What it is called in the report.
    pub(crate) fn title(&self) -> String {
        format!("{} files", thousands(self.files))
    }

    /// A copy by `cp -a` that is on disk.
    pub(crate) fn copy(&self, bench: &Bench, name: &str) -> PathBuf {
        let to = bench.fresh(&format!("{name}-{}", self.files));
        time(&mut command("cp", &["-a", "--"], &[&self.path, &to]), &[0]);
        bench.settle();
        to
    }

    /// A git repository of the same files, all committed.
    pub(crate) fn repository(&self, bench: &Bench, name: &str) -> PathBuf {
        let at = self.copy(bench, name);
        let words: [&[&str]; 4] = [
            &["init", "-q", "-b", "main"],
            &["add", "-A"],
            &["commit", "-q", "-m", "all"],
            &["status", "--porcelain"],
        ];
        for words in words {
            time(&mut git(&at, words), &[0]);
        }
        bench.settle();
        at
    }
}

/// Writes so many files below `root`, each as long as `size` says.
pub(crate) fn fill(root: &Path, files: usize, size: impl Fn(usize) -> usize) {
    let text: String = (0..512).map(|n| format!("a line of text {n}\n")).collect();
    let text = text.as_bytes();
    for file in 0..files {
        let path = root.join(name(file));
        if file % FILES_IN_A_DIRECTORY == 0 {
            let parent = path.parent().expect("a file has a directory");
            std::fs::create_dir_all(parent)
                .unwrap_or_else(|error| panic!("cannot make {}: {error}", parent.display()));
        }
        // Each begins elsewhere, so that no two files of one size are the same.
        let start = file % 1024;
        std::fs::write(&path, &text[start..start + size(file)])
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}

/// git that knows nothing of the process that runs it.
pub(crate) fn git(at: &Path, words: &[&str]) -> std::process::Command {
    let mut git = command("git", &["-C"], &[at]);
    git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
    git.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"]);
    git.args(words);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    git
}

/// A number as people read it.
pub(crate) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
