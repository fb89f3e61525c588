//! Names that look like others: letters of other scripts in the place of Latin ones.

use super::change::DiffView;
use super::path::ResourcePath;

/// Letters of Cyrillic and Greek that look like these.
const ALIKE: [(&str, &str); 2] = [
    (
        "аеорсухіјѕԁһӏԛԝүАВЕКМНОРСТУХІЈЅԌԚԜ",
        "aeopcyxijsdhlqwyABEKMHOPCTYXIJSGQW",
    ),
    ("οανρυικΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "oavpuikABEZHIKMNOPTYX"),
];

/// A changed path of which a name looks like another name, and that other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookalike {
    /// The path.
    pub path: ResourcePath,
    /// What its last name looks like.
    pub like: String,
}

/// The paths that came and whose last name has Latin letters beside others that look like them. A name that has other letters of such a
/// script too is a word of that script.
pub fn lookalikes(diff: &DiffView) -> Vec<Lookalike> {
    let came = diff.changes.iter().filter(|change| change.old.is_none());
    let one = |path: &ResourcePath| {
        let name = path.parts().next_back()?;
        let like = latin(std::str::from_utf8(name).ok()?)?;
        let path = path.clone();
        Some(Lookalike { path, like })
    };
    came.filter_map(|change| one(&change.path)).collect()
}

/// A name in Latin letters, if it only looks as if it had none but those.
fn latin(name: &str) -> Option<String> {
    let mixed = !name.is_ascii() && name.chars().any(|c| c.is_ascii_alphabetic());
    let letter = |c: char| match c.is_ascii() || !c.is_alphabetic() {
        true => Some(c),
        false => ALIKE.iter().find_map(|(from, to)| {
            let number = from.chars().position(|one| one == c)?;
            to.chars().nth(number)
        }),
    };
    let latin: String = name.chars().map(letter).collect::<Option<_>>()?;
    (mixed && latin != name).then_some(latin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_two_scripts_is_found_and_a_word_of_one_is_not() {
        for (from, to) in ALIKE {
            assert_eq!(from.chars().count(), to.chars().count());
            assert!(to.is_ascii() && !from.chars().any(|c| c.is_ascii()));
        }
        assert_eq!(latin("\u{430}pp.py").as_deref(), Some("app.py"));
        assert_eq!(latin("Mak\u{435}file").as_deref(), Some("Makefile"));
        assert_eq!(latin("\u{3bf}ut").as_deref(), Some("out"));
        for plain in [
            "app.py",
            "отчет.txt",
            "naïve.py",
            "数据.csv",
            "é",
            "α",
            "a-✓",
        ] {
            assert_eq!(latin(plain), None, "{plain}");
        }
    }
}
