//! Enumerations with one word for each value: in the store, in JSON and on the screen.

/// Defines such an enumeration: `as_str`, `Display`, `FromStr`, and `ALL` in the order of the values. The closure says
/// what is wrong with a word that is none of them.
macro_rules! words {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($(#[$of_value:meta])* $value:ident = $word:literal,)+
        }
        else $unknown:expr
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of_value])* $value,)+
        }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// Its word.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> std::result::Result<Self, String> {
                let unknown: fn(&str) -> String = $unknown;
                let found = Self::ALL.into_iter().find(|one| one.as_str() == word);
                found.ok_or_else(|| unknown(word))
            }
        }
    };
}

pub(crate) use words;

#[cfg(test)]
mod tests {
    use crate::model::{Action, CleanupPolicy, JournaledWork, Phase, PlanState, SandboxState};

    #[test]
    fn every_value_has_one_word() {
        fn check<T: std::str::FromStr<Err = String> + ToString + PartialEq + std::fmt::Debug>(
            all: &[T],
        ) {
            for one in all {
                assert_eq!(one.to_string().parse().as_ref(), Ok(one));
            }
            assert!("always".parse::<T>().is_err());
        }
        check(&Action::ALL);
        check(&CleanupPolicy::ALL);
        check(&JournaledWork::ALL);
        check(&Phase::ALL);
        check(&PlanState::ALL);
        check(&SandboxState::ALL);
    }
}
